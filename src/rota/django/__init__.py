"""Rota in a Django project: add `rota.django` to INSTALLED_APPS, then `from rota.django import app`.

`manage.py rota up|server|worker|migrate` runs Rota with the project's tasks, which are found in the `tasks` modules of
its apps. Settings: `ROTA = {"ORG": …, "DATABASE": alias, …}`, see docs/integrations.md.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rota.django.program import app, enqueue, enqueue_many

__all__ = ["app", "enqueue", "enqueue_many"]


def __getattr__(name: str) -> Any:
    """Load the program on first use: Django imports this module before its settings and apps are ready, and
    `rota worker rota.django:app` imports it without Django."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import django
        from django.apps import apps
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("rota.django needs Django: install rota-scheduler[django]") from error
    if not (apps.ready or apps.loading):
        django.setup()
    from rota.django import program

    return getattr(program, name)
