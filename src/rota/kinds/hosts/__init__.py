"""Jobs on hosts: an agent claims them over HTTP, one that changes something at a time."""

from rota.kinds.hosts.dispatch import Dispatch, Hub
from rota.kinds.hosts.manager import HostManager
from rota.kinds.hosts.runner import HostRunner

__all__ = ["Dispatch", "HostManager", "HostRunner", "Hub"]
