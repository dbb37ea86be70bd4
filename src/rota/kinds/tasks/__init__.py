"""Tasks: Python functions and shell commands."""
