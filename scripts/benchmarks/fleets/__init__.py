"""What many workers and nodes cost: a job's driver, a cluster's hub, one who scrapes them."""
