"""Routes of billing and grants."""
