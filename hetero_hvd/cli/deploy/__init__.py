"""`hetero-hvd deploy`: files with which others start agents and a driver."""
