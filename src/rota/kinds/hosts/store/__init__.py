"""SQL of hosts and batches."""
