"""Pages of access: login, audit log."""
