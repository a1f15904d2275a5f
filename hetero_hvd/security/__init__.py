"""Keys, certificates, tokens, and ports that strangers cannot fill."""
