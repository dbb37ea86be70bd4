"""`rota agent`: one small process on a host. It speaks HTTP to a server, and has no database.

courier.py   asks the server for work, and takes results to it
journal.py   what was begun and what became of it, on disk before anything happens
shim.py      one run: a process of its own, which outlives the agent and writes down how it ended
types.py     what an agent can do
"""
