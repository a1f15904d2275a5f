"""Lets a trainer read a stream: python streaming.py WAY, of `integrations.test_streams.USES`."""

import sys

from tests.data.streams import STREAMS
from tests.integrations.test_streams import use

use("out-of-the-trainer", sys.argv[1], STREAMS["a generator"])
