"""Workflows: producers and consumers that talk through topics, with effects that are never done twice."""
