"""The Django app: finds the tasks of the project; `manage.py migrate` brings Rota's tables up to date."""

from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from rota.django.settings import database_alias, database_url, export_settings, read_settings


class RotaConfig(AppConfig):
    """Configuration of the app `rota.django`."""

    name = "rota.django"
    label = "rota_django"
    verbose_name = "Rota"

    def ready(self) -> None:
        """Import the `tasks` modules of all apps, and those of ROTA["MODULES"]."""
        export_settings()
        autodiscover_modules("tasks")
        for module in read_settings().get("MODULES", ()):
            import_module(module)
        post_migrate.connect(migrate, sender=self)


def migrate(using: str, **_: Any) -> None:
    """Bring Rota's tables up to date after Django's."""
    if using != database_alias():
        return
    url = database_url()
    if url == "sqlite:///:memory:" or "mode=memory" in url:
        raise ImproperlyConfigured("Rota cannot use a database in memory: name a file, also as TEST NAME")
    from rota.db.migrate import migrate  # alembic takes long to load

    migrate(url)
