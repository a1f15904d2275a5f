"""The queue of the hub: who wants devices, who has them, and the processes of the jobs."""
