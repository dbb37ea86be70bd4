"""Graphs: AI work that runs under a grant and is charged by what it uses."""
