"""A worker that waits for a late one: what it takes of its processor; whether signals arrive."""

import signal
import time

import torch
from scripted import report

from hetero_hvd.worker.comm.horovod import HorovodCollective

LATE_SECONDS, SIGNAL_SECONDS = 1.0, 0.3

collective = HorovodCollective(elastic=False, is_unwanted=lambda: False)
collective.start()
handled_at = []
if collective.rank == 1:
    time.sleep(LATE_SECONDS)
began_at, used = time.perf_counter(), time.process_time()
signal.signal(signal.SIGALRM, lambda *_: handled_at.append(time.perf_counter() - began_at))
signal.setitimer(signal.ITIMER_REAL, SIGNAL_SECONDS)
total = collective.wait(collective.sum_async(torch.ones(3), "late"))
waited, used = time.perf_counter() - began_at, time.process_time() - used
signal.setitimer(signal.ITIMER_REAL, 0)
report(
    {
        "sum": total.tolist(),
        "waited_seconds": waited,
        "processor_ratio": used / waited,
        "handled_at_seconds": handled_at,
    }
)
collective.stop()
