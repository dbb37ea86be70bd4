"""`rota agent`: a process on a host that runs jobs for a server over HTTP. It has no database.

loop.py        polls the server for orders, starts runs, sends logs and results
journal.py     orders, states and results of runs, on disk before they take effect
supervisor.py  one run: a process of its own, which outlives the agent and writes its result to the journal
job_types.py   the built-in job types, and those of a file of the host
allow.py       patterns of the commands and URLs that the host allows
"""
