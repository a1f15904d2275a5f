"""What NCCL says with NCCL_DEBUG=INFO, as several of its versions print it."""

from __future__ import annotations

import pytest

from hetero_hvd.core.nccl_log import nccl_in_words, read_nccl

HEAD = "alpha:4711:4750 [0] NCCL INFO "
TWO_GPUS = [
    "step 0 loss 0.5",
    "alpha:4711:4711 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
    "NCCL version 2.21.5+cuda12.4",
    "alpha:4711:4711 [0] NCCL INFO NCCL version 2.21.5+cuda12.4",
    f"{HEAD}NET/Plugin: No plugin found (libnccl-net.so)",
    f"{HEAD}NET/IB : No device found.",
    f"{HEAD}NET/Socket : Using [0]eth0:10.0.0.1<0>",
    f"{HEAD}Using network Socket",
    f"{HEAD}comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 - Init START",
    f"{HEAD}Channel 00/02 :    0   1",
    f"{HEAD}Channel 01/02 :    0   1",
    f"{HEAD}Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
    f"{HEAD}P2P Chunksize set to 131072",
    f"{HEAD}Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
    f"{HEAD}Channel 01/0 : 0[0] -> 1[1] via P2P/IPC",
    f"{HEAD}Connected all rings",
    f"{HEAD}comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
]
TWO_MACHINES = [
    f"{HEAD}Using network IB",
    f"{HEAD}NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    f"{HEAD}Channel 00/04 :    0   1   3   2",
    f"{HEAD}Channel 01/04 :    0   2   3   1",
    f"{HEAD}Channel 02/04 :    0   1   3   2",
    f"{HEAD}Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA",
    f"{HEAD}Channel 01/0 : 3[1] -> 0[0] [receive] via NET/IB/1/GDRDMA",
    f"{HEAD}Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct",
    f"{HEAD}Channel 00/0 : 0[0] -> 3[1] [send] via NET/IB/0",
]
OLD = [
    f"{HEAD}Channel 00/02 :    0   1   2",
    f"{HEAD}Channel 00 : 0[1000] -> 1[2000] via P2P/direct pointer",
    f"{HEAD}Channel 00 : 2[3000] -> 0[1000] [receive] via NET/Socket/0",
    "alpha:1:2 [0] include/alloc.h:100 NCCL WARN Cuda failure 'out of memory'",
]
SOCKET = (
    "a:0: NCCL 2.21.5+cuda12.4; network Socket; [0]eth0:10.0.0.1<0>; connections by P2P/IPC x 2"
)
INFINIBAND = (
    "a:0: NCCL; network IB; [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>; connections by "
    "NET/IB/GDRDMA x 2, NET/IB x 1, SHM/direct/direct x 1"
)
CASES = {
    "two GPUs of a machine": (
        TWO_GPUS,
        [
            SOCKET,
            "a:0: ring of ranks 0 1 in 2 channels",
        ],
    ),
    "two machines": (
        TWO_MACHINES,
        [
            INFINIBAND,
            "a:0: ring of ranks 0 1 3 2 in 2 channels",
            "a:0: ring of ranks 0 2 3 1 in 1 channel",
        ],
    ),
    "an old version, with a warning": (
        OLD,
        [
            "a:0: NCCL; connections by NET/Socket x 1, P2P/direct x 1",
            "a:0: ring of ranks 0 1 2 in 1 channel",
            "a:0: NCCL warns: Cuda failure 'out of memory'",
        ],
    ),
    "a new communicator after a reset": (
        [*TWO_MACHINES, *TWO_GPUS],
        [
            SOCKET,
            "a:0: ring of ranks 0 1 in 2 channels",
        ],
    ),
    "a warning alone": (
        ["x NCCL WARN Missing ranks"],
        ["a:0: NCCL", "a:0: NCCL warns: Missing ranks"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rings_and_transports_are_read(case):
    """Of the newest communicator."""
    lines, expected = CASES[case]
    assert list(nccl_in_words("a:0", read_nccl(lines))) == expected


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["step 0 loss 0.5", "NCCL is not used", "NCCL version 2.21.5+cuda12.4"],
        ["\x00\xff", "NCCL INFO", "Channel 00/02 : 0 1"],
    ],
)
def test_without_it_there_is_nothing(lines):
    """Whatever else is printed."""
    assert read_nccl(lines) is None
