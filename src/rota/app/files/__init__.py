"""Installations as files: plan, apply and export."""
