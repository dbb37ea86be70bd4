"""Alarms: rules about work and the installation, and messages through channels."""
