"""Files that `rota demo` and `rota init` write: a program to look at, and a small project to change."""
