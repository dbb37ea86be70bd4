"""Organisations, users, API keys, logins and the audit log."""
