"""A training whose script has connections of its own; a worker is lost, and they must stay whole.

Usage: own_sockets.py FOLDER. Writes, for each kind of socket, whether it still works at the end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import hetero_hvd
from hetero_hvd.worker.comm.horovod import HorovodCollective

VICTIM, KILL_STEP, SIZE, BATCH, EPOCHS = "beta:0", 5, 64, 8, 4
OPENED_WITHIN_SECONDS = 0.002
"""The busy thread opens a connection so often, also while Horovod opens its own."""


def tcp():
    """Both ends of a connection over the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return near, far


def unix(folder):
    """Both ends of a connection through a file."""
    path = str(folder / f"{os.getpid()}.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        near = socket.socket(socket.AF_UNIX)
        near.connect(path)
        far, _ = server.accept()
    return near, far


class Own:
    """The sockets of this process by kind."""

    def __init__(self):
        self.pairs = {}
        self.servers = {}
        self.opened_in_thread = []

    def works(self):
        """Kind to whether it does."""
        found = {kind: says(*pair) for kind, pair in self.pairs.items()}
        found |= {kind: answers(server) for kind, server in self.servers.items()}
        found["in a thread"] = all(says(*pair) for pair in self.opened_in_thread)
        return found


def says(near, far):
    """Whether what goes in at one end comes out at the other, both ways."""
    try:
        near.sendall(b"there")
        far.sendall(b"back!")
        return (far.recv(5), near.recv(5)) == (b"there", b"back!")
    except OSError:
        return False


def answers(server):
    """Whether it can still be connected to."""
    try:
        near = socket.create_connection(server.getsockname(), timeout=1)
        server.settimeout(1)
        far, _ = server.accept()
        return says(near, far)
    except OSError:
        return False


class Numbers(Dataset):
    """Connects at the first sample, as to a database."""

    def __init__(self, own):
        self.own = own

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        if "in a dataset" not in self.own.pairs:
            self.own.pairs["in a dataset"] = tcp()
        assert says(*self.own.pairs["in a dataset"]), "the dataset's connection is broken"
        return torch.tensor([float(index)])


def open_in_the_background(own, is_over):
    """Open connections while Horovod starts, and again while it starts anew."""
    start = HorovodCollective.start
    starting = threading.Event()

    def busy():
        while not is_over.is_set():
            if starting.wait(0.1):
                own.opened_in_thread.append(tcp())
                time.sleep(OPENED_WITHIN_SECONDS)

    def watched(self):
        starting.set()
        try:
            start(self)
        finally:
            starting.clear()

    HorovodCollective.start = watched
    threading.Thread(target=busy, daemon=True).start()


def main():
    """Train, and tell what still works."""
    folder, worker = Path(sys.argv[1]), os.environ["HETERO_HVD_WORKER"]
    own, is_over = Own(), threading.Event()
    own.pairs["before init"] = tcp()
    open_in_the_background(own, is_over)
    model = torch.nn.Linear(1, 1)
    loader = DataLoader(Numbers(own), BATCH)
    trainer = hetero_hvd.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.001), loader)

    def loss(x):
        if worker == VICTIM and trainer.applied_steps == KILL_STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        return model(x).square().mean()

    for epoch in trainer.epochs(EPOCHS):
        if not epoch:
            own.pairs |= {"after init": tcp(), "socketpair": socket.socketpair()}
            own.pairs["unix"] = unix(folder)
            own.servers["listening"] = socket.create_server(("127.0.0.1", 0))
        for x in trainer.batches():
            trainer.step(loss, x)
            own.pairs.setdefault("between steps", tcp())
    is_over.set()
    result = {"works": own.works(), "in_thread": len(own.opened_in_thread)}
    (folder / f"works-{worker.replace(':', '-')}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
