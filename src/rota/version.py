"""Version, and the name under which Rota is installed. The package and the command are called `rota`."""

__version__ = "0.1.0"
DISTRIBUTION = "rota-scheduler"  # the name in pyproject.toml
