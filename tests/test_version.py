"""One version, wherever it is written."""

import re
from pathlib import Path

import hetero_hvd
from hetero_hvd import version


def test_the_package_and_its_setup_say_the_same():
    """Also what a driver and an agent tell each other."""
    setup = (Path(__file__).parent.parent / "setup.py").read_text()
    assert re.search(r'version="([^"]+)"', setup)[1] == version.__version__
    assert hetero_hvd.__version__ == version.__version__
