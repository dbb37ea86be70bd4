"""Commands: the connection to a server, output, times."""
