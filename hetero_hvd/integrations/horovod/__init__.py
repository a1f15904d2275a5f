"""Scripts that train by Horovod alone (`DistributedOptimizer`, `hvd.elastic`) as workers of a job.

Such a script knows nothing of this package. At its first `hvd.init()` in a worker of our driver
`worker/site` calls `start.begin`: the process becomes a worker of the job, and Horovod's own loop
for elastic training stays as it is, with our rendezvous, our driver's wishes and our records in it.
"""
