"""How a user's function or command is called: injection, processes, services."""
