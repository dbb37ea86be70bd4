"""Workflows as uploaded scripts, run in a sandbox."""
