"""SQL of alarms."""
