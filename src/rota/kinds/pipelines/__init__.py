"""Pipelines: SQL and functions that make tables out of tables, in layers."""
