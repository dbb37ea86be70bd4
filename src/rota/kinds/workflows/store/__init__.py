"""SQL of workflows."""
