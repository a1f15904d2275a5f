"""What a rendezvous begins with travels with its first operation: each round takes all workers."""

import torch
from rendezvous import Hub, run_together

NUM_RENDEZVOUS = 3


def test_connections_are_told_with_the_first_operation():
    """And once; also after a restart."""
    hub = Hub(1)

    def work(context):
        collective = context.collective
        for number in range(NUM_RENDEZVOUS):
            assert number not in {place for place, *_ in hub.posts}
            for name in ("first", "second"):
                collective.wait(collective.gather_rows_async(torch.zeros(1, 1), name))
            told = [name for place, name, _ in hub.posts if place == number]
            assert told == ["reserve", "connections", "first", "second"]
            collective.restart()
        return number

    assert run_together(hub, work) == [NUM_RENDEZVOUS - 1]
