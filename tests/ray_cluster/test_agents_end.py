"""The end of the process that talks with Ray."""

import subprocess
from contextlib import suppress

from hetero_hvd.ray_cluster.agents import RayAgents


def test_a_process_that_has_ended_before_it_read_its_order_is_buried():
    """What is left in the pipe to it cannot be written any more, and that is no error."""
    process = subprocess.Popen(["false"], stdin=subprocess.PIPE)
    process.wait()
    with suppress(BrokenPipeError):
        process.stdin.write(b"order\n")
        process.stdin.flush()

    RayAgents._end(process)

    assert process.stdin.closed
