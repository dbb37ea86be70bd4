"""Grants, accounts and charges."""
