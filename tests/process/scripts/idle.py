"""A worker that has nothing to do for a while: what it takes of its processor."""

import time

from scripted import report

from hetero_hvd.worker.comm.horovod import HorovodCollective

IDLE_SECONDS = 1.0

collective = HorovodCollective(elastic=False, is_unwanted=lambda: False)
collective.start()
before = time.process_time()
time.sleep(IDLE_SECONDS)
report({"processor_ratio": (time.process_time() - before) / IDLE_SECONDS})
collective.stop()
