"""When schedules are due: cron, intervals, windows, daylight saving time. Pure."""
