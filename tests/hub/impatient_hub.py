"""`hetero-hvd hub` for which a run is silent sooner: `impatient_hub.py hub WORD...`."""

from __future__ import annotations

import sys

from hetero_hvd.cli import main
from hetero_hvd.hub import runs

runs.SILENT_SECONDS = 12.0

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
