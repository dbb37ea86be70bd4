"""Grants, billing accounts and charges."""
