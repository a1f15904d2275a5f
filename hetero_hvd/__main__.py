"""`python -m hetero_hvd` is `hetero-hvd`."""

import sys

from hetero_hvd.cli import main

if __name__ == "__main__":
    sys.exit(main())
