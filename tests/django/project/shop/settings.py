"""A Django project with Rota's tables in its database; tests set SHOP_DATABASE to a URL."""

import importlib.util
import os
from typing import Any
from urllib.parse import urlsplit

parts = urlsplit(os.environ["SHOP_DATABASE"])
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": parts.path[1:],
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
    }
    if parts.scheme == "sqlite"
    else {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
}
HAS_TASKS = importlib.util.find_spec("django.tasks") is not None  # Django 6
INSTALLED_APPS = ["shop", "rota.django", *([] if HAS_TASKS else ["django_tasks"])]
TASKS = {"default": {"BACKEND": "rota.django.backend.RotaBackend", "QUEUES": ["default", "mail"]}}
ROTA = {"CONCURRENCY": 5, "DATA_DIR": os.environ["SHOP_DATA_DIR"], "LEASE_SECONDS": 5}
SECRET_KEY = "only for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
