"""Executors: where a task runs other than in its worker. The run stays Rota's: lease, cancel, log, result, retries."""
