"""What tests put in the place of something real meets nobody but those that it is for."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
WHOLE_PROCESS = re.compile(r"""setattr\(\s*(?:[\w.]+\.)?time,|setattr\(\s*["']time\.""")


def test_no_test_sets_the_clock_of_the_whole_process():
    """Threads that earlier tests have left would meet it; `tests.module_clock` is for one."""
    found = [path for path in TESTS.rglob("*.py") if WHOLE_PROCESS.search(path.read_text())]
    assert found == []
