"""Files with which others start agents and a driver: Kubernetes, Docker Compose; and the image.

All are plain data, written as YAML. Nothing here talks to a cluster.
"""
