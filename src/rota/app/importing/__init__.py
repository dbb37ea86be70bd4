"""Schedules of other schedulers as files of Rota."""
