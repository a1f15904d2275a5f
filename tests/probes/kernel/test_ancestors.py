"""What is above this process is read from the kernel."""

import os
import subprocess
import sys
from pathlib import Path

from hetero_hvd.probes.kernel.ancestors import ancestors


def test_the_way_up_begins_here(tmp_path):
    """Each with its words and the variables it began with, up to the first process of all."""
    own = Path("/proc/self/cmdline").read_text().removesuffix("\0").split("\0")
    assert next(ancestors()).words == own
    code = (
        "import os; from hetero_hvd.probes.kernel.ancestors import ancestors; "
        "above = list(ancestors())[1]; "
        "print(above.words, above.environment.get('\"'BEFORE'\"'), os.environ['\"'AFTER'\"'])"
    )
    link = tmp_path / "caller"
    link.symlink_to("/bin/sh")
    found = subprocess.run(
        [link, "-c", f"export BEFORE=2 AFTER=3; {sys.executable} -c '{code}'; :", "two words"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"BEFORE": "1"},
    )
    assert found.stdout.startswith(f"['{link}', '-c', ")
    assert found.stdout.endswith(", 'two words'] 1 3\n")
