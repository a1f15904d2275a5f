"""Files with which others start agents and a driver: Kubernetes, Slurm, Docker Compose; the image.

All are plain data, or short scripts. Nothing here talks to a cluster.
"""
