"""What `install` and `doctor -f` do on the nodes, over ssh and beside any job."""
