"""SQL of organisations, users, API keys and logins."""
