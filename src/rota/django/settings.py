"""The setting `ROTA` of a Django project."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections

from rota.app.settings import Settings

OWN_KEYS = ("ORG", "DATABASE", "MODULES")  # the others are settings of Rota, without ROTA_


def read_settings() -> Mapping[str, Any]:
    """Return the setting `ROTA`. Raises ImproperlyConfigured for an unknown key."""
    values: Mapping[str, Any] = getattr(settings, "ROTA", {})
    known = {*OWN_KEYS, *(name.upper() for name in Settings.model_fields)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ImproperlyConfigured(f"ROTA has unknown keys: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    if values.get("DATABASE", DEFAULT_DB_ALIAS) not in connections:
        raise ImproperlyConfigured(f"ROTA['DATABASE'] {values['DATABASE']!r} is not in DATABASES")
    return values


def export_settings() -> None:
    """Set the environment variables of Rota's settings, which its processes and their children read. A variable that is
    set wins."""
    for name, value in read_settings().items():
        if name not in OWN_KEYS:
            os.environ.setdefault(f"ROTA_{name}", str(value))
    os.environ.setdefault("ROTA_DATABASE_URL", database_url())


def database_alias() -> str:
    """Return the alias of the database that has Rota's tables."""
    return str(read_settings().get("DATABASE", DEFAULT_DB_ALIAS))


def database_url() -> str:
    """Return the URL of the database that has Rota's tables. Raises ImproperlyConfigured if Rota has no such kind."""
    connection = connections[database_alias()]
    options = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{Path(options['NAME']).absolute()}"
    if connection.vendor != "postgresql":
        raise ImproperlyConfigured(f"Rota needs PostgreSQL or SQLite; DATABASES[{connection.alias!r}] is another kind")
    user, password = quote(options["USER"] or "", safe=""), quote(options["PASSWORD"] or "", safe="")
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    host, port = options["HOST"] or "", f":{options['PORT']}" if options["PORT"] else ""
    if host.startswith("/"):  # the directory of a Unix socket
        return f"postgresql://{login}/{quote(options['NAME'])}?host={quote(host, safe='')}"
    return f"postgresql://{login}{f'[{host}]' if ':' in host else host}{port}/{quote(options['NAME'])}"
