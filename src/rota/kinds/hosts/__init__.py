"""Jobs on hosts: an agent claims them over HTTP, one that changes something at a time."""
