"""Where the Kubernetes API is and how this worker signs in: a kubeconfig file, or the service account of its pod."""

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rota.core.errors import LogicError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_CONFIG = "~/.kube/config"
REMEDY = "set ROTA_KUBERNETES_CONFIG to a kubeconfig file, or run the worker in a pod with a service account"


@dataclass(frozen=True, slots=True)
class Access:
    """An API server, the namespace of Jobs, and credentials."""

    server: str
    namespace: str
    tls: ssl.SSLContext
    token: str = ""
    token_file: str = ""  # read for each request: the kubelet renews it

    def headers(self) -> dict[str, str]:
        token = Path(self.token_file).read_text().strip() if self.token_file else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}


def find_access(config: str) -> Access:
    """Return the access that a kubeconfig file describes, or that of this pod. Raises LogicError, with the remedy."""
    import yaml  # imported here: few workers need it

    path = Path(config or os.environ.get("KUBECONFIG", "") or DEFAULT_CONFIG).expanduser()
    if config or path.is_file():
        try:
            return from_config(path, yaml.safe_load(path.read_text()))
        except (OSError, ValueError, KeyError, TypeError, StopIteration, yaml.YAMLError) as error:
            lines = str(error).splitlines() or ["its current context is incomplete"]
            reason = f"{type(error).__name__}: {lines[0]}"
            raise LogicError(f"kubeconfig {str(path)!r} cannot be used ({reason}); {REMEDY}") from error
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if host is None or not (SERVICE_ACCOUNT / "token").is_file():
        raise LogicError(f"there is neither a kubeconfig nor a service account: {REMEDY}")
    tls = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
    namespace = (SERVICE_ACCOUNT / "namespace").read_text().strip()
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Access(server, namespace, tls, token_file=str(SERVICE_ACCOUNT / "token"))


def from_config(path: Path, config: Mapping[str, Any]) -> Access:
    context = named(config["contexts"], config["current-context"])["context"]
    cluster = named(config["clusters"], context["cluster"])["cluster"]
    user = named(config.get("users") or [], context["user"])["user"] if context.get("user") else {}
    if "exec" in user or "auth-provider" in user:
        raise LogicError(
            f"kubeconfig {str(path)!r} signs in by a program, which is not supported: use a token or a client "
            "certificate, such as those of a service account"
        )
    tls = ssl.create_default_context(cadata=content(cluster, "certificate-authority", path))
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    certificate, key = content(user, "client-certificate", path), content(user, "client-key", path)
    if certificate and key:
        with tempfile.NamedTemporaryFile("w") as file:  # it cannot be loaded from memory
            file.write(f"{certificate}\n{key}")
            file.flush()
            tls.load_cert_chain(file.name)
    token_file = user.get("tokenFile", "")
    return Access(
        cluster["server"].rstrip("/"), context.get("namespace", "default"), tls, user.get("token", ""), token_file
    )


def named(entries: list[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def content(fields: Mapping[str, Any], name: str, path: Path) -> str | None:
    """Return a certificate or key that is in the file itself, or in a file beside it."""
    if f"{name}-data" in fields:
        return base64.b64decode(fields[f"{name}-data"], validate=True).decode()
    return (path.parent / fields[name]).read_text() if name in fields else None
