"""Read models for people: schedules, slots, jobs, runs and the installation, as API, dashboard and commands show them.

The code that schedules and runs jobs imports none of them.
"""
