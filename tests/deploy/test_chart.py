"""The Helm chart: rendered, validated against the API of Kubernetes, and its schema of values.

Rendered by Helm where it is installed, else by `render_chart.go`, which uses the same template language.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest
import yaml

from rota.app.exposition import GAUGES
from rota.app.settings import Settings
from rota.version import __version__
from tests.clients.document import client_document
from tests.deploy.pythons import ROOT

CHART = ROOT / "deploy" / "helm" / "rota"
GO_LIBRARIES = Path("/usr/share/gocode")  # of Debian
DATABASE = {"database": {"existingSecret": "rota-database"}}
KEDA = {"worker": {"autoscaling": {"enabled": True, "prometheusAddress": "http://prometheus:9090"}}}
WANTED = {"worker": {"autoscaling": {"enabled": True, "signal": "wanted-workers", "keySecret": "rota-keda"}}}
EVERYTHING = {
    **DATABASE,
    "image": {"repository": "images.example/team/rota", "tag": "1"},
    "imagePullSecrets": ["pull"],
    "serviceToken": {"existingSecret": "token"},
    "oidc": {"existingSecret": "sign-in", "key": "secret"},
    "program": {"configMap": "program"},
    "publicUrl": "https://rota.example",
    "trustedProxies": "10.0.0.0/8",
    "settings": {"ROTA_LOG_LEVEL": "debug", "ROTA_MAX_RETRIES": 3},
    "data": {"existingClaim": "rota"},
    "server": {"replicas": 3, "nodeSelector": {"disk": "fast"}, "podAnnotations": {"team": "ops"}},
    "worker": {
        **KEDA["worker"],
        "queues": ["fast", "slow"],
        "tolerations": [{"key": "batch", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
    },
}

Render = Callable[[Mapping[str, Any]], dict[str, str]]


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Values over the defaults, as Helm merges them."""
    nested = {name: merged(base[name], value) for name, value in over.items() if isinstance(base.get(name), dict)}
    return {**base, **over, **nested}


def all_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return merged(yaml.safe_load((CHART / "values.yaml").read_text()), values)


@pytest.fixture(scope="session")
def render(tmp_path_factory: pytest.TempPathFactory) -> Render:
    """Renders the chart with values over its defaults: {template: text}."""
    if shutil.which("helm"):
        return render_by_helm
    libraries = ("github.com/Masterminds/sprig", "sigs.k8s.io/yaml")
    if not shutil.which("go") or not all((GO_LIBRARIES / "src" / name).is_dir() for name in libraries):
        pytest.skip("neither helm nor go with sprig and sigs.k8s.io/yaml (Debian's -dev packages) is installed")
    place = tmp_path_factory.mktemp("go")
    program = place / "render"
    env = {**os.environ, "GO111MODULE": "off", "GOPATH": str(GO_LIBRARIES), "GOCACHE": str(place / "cache")}
    source = Path(__file__).with_name("render_chart.go")
    subprocess.run(["go", "build", "-o", str(program), str(source)], env=env, check=True, timeout=280)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    def render_by_go(values: Mapping[str, Any]) -> dict[str, str]:
        context = {
            "Values": all_values(values),
            "Release": {"Name": "test", "Namespace": "jobs", "Service": "Helm"},
            "Chart": {"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
        }
        command = [str(program), str(CHART)]
        answer = subprocess.run(command, input=json.dumps(context), capture_output=True, text=True, check=False)
        if answer.returncode:
            raise ValueError(answer.stderr)
        texts: dict[str, str] = json.loads(answer.stdout)
        return texts

    return render_by_go


def render_by_helm(values: Mapping[str, Any]) -> dict[str, str]:
    command = ["helm", "template", "test", str(CHART), "--namespace", "jobs", "--values", "-"]
    answer = subprocess.run(command, input=yaml.safe_dump(dict(values)), capture_output=True, text=True, check=False)
    if answer.returncode:
        raise ValueError(answer.stderr)
    parts = re.split(r"^# Source: rota/templates/(\S+)\n", answer.stdout, flags=re.MULTILINE)[1:]
    texts: dict[str, str] = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        texts[name] = texts.get(name, "") + "---\n" + text
    return texts


def objects(texts: Mapping[str, str]) -> dict[tuple[str, str], Any]:
    """The Kubernetes objects by kind and name."""
    templates = [yaml.safe_load_all(text) for name, text in texts.items() if name != "NOTES.txt"]
    manifests = [manifest for template in templates for manifest in template if manifest]
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}


def pods(rendered: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    return {
        name: manifest["spec"]["template"]["spec"]
        for (kind, name), manifest in rendered.items()
        if kind in ("Deployment", "Job")
    }


@pytest.mark.parametrize("values", [DATABASE, {**DATABASE, **KEDA}, EVERYTHING], ids=["least", "keda", "everything"])
def test_rendered_objects_are_valid(render: Render, values: dict[str, Any]) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    rendered = objects(render(values))
    kinds = sorted(kind for kind, _ in rendered)
    expected = ["Deployment", "Deployment", "Job", "PodDisruptionBudget", "PodDisruptionBudget", "Service"]
    assert [kind for kind in kinds if kind != "ScaledObject"] == expected
    assert ("ScaledObject" in kinds) == bool(values.get("worker"))
    for (kind, _), manifest in rendered.items():
        if kind != "ScaledObject":  # of KEDA, not of Kubernetes
            kubernetes.validate(manifest, kubernetes.latest_version(), strict=True)


@pytest.mark.parametrize("values", [DATABASE, EVERYTHING], ids=["least", "everything"])
def test_every_pod_is_unprivileged_and_reads_secrets_from_files(render: Render, values: dict[str, Any]) -> None:
    specs = pods(objects(render(values)))
    assert len(specs) == 3
    for spec in specs.values():
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]["memory"]
        env = {variable["name"]: variable["value"] for variable in container["env"]}
        assert env["ROTA_DATABASE_URL_FILE"] == "/run/secrets/database/url"
        known = {f"ROTA_{name.upper()}" for name in Settings.model_fields}
        assert {name.removesuffix("_FILE") for name in env} <= known
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in spec["volumes"]}


def test_probes_replicas_and_stop_timeouts(render: Render) -> None:
    rendered = objects(render({**DATABASE, "drainSeconds": 600}))
    specs = pods(rendered)
    (server,) = specs["test-rota-server"]["containers"]
    assert server["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert server["livenessProbe"]["httpGet"]["path"] == server["startupProbe"]["httpGet"]["path"] == "/health/live"
    assert specs["test-rota-worker"]["terminationGracePeriodSeconds"] == 630
    assert rendered["Deployment", "test-rota-worker"]["spec"]["replicas"] == 2
    migration = rendered["Job", "test-rota-migration"]
    assert migration["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert specs["test-rota-migration"]["containers"][0]["args"] == ["migrate"]
    service = rendered["Service", "test-rota"]["spec"]["selector"]
    labels = rendered["Deployment", "test-rota-server"]["spec"]["template"]["metadata"]["labels"]
    assert service.items() <= labels.items()


def test_everything_that_can_be_set_reaches_the_objects(render: Render) -> None:
    rendered = objects(render(EVERYTHING))
    (worker,) = pods(rendered)["test-rota-worker"]["containers"]
    options = ["--concurrency", "50", "--queues", "fast,slow"]
    assert worker["args"] == ["worker", "/srv/program/app.py", *options]
    assert worker["image"] == "images.example/team/rota:1"
    assert {"name": "ROTA_MAX_RETRIES", "value": "3"} in worker["env"]
    assert "replicas" not in rendered["Deployment", "test-rota-worker"]["spec"]  # KEDA sets it
    scaled = rendered["ScaledObject", "test-rota-worker"]["spec"]
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["query"] == "max(rota_queue_oldest_ready_seconds)"
    assert scaled["scaleTargetRef"]["name"] == "test-rota-worker"
    assert pods(rendered)["test-rota-server"]["nodeSelector"] == {"disk": "fast"}


def test_keda_asks_the_server_for_wanted_workers(render: Render) -> None:
    values = merged({**DATABASE, **WANTED}, {"worker": {**WANTED["worker"], "queues": ["fast", "slow"]}})
    rendered = objects(render(values))
    (trigger,) = rendered["ScaledObject", "test-rota-worker"]["spec"]["triggers"]
    assert trigger["type"] == "metrics-api"
    assert "metricType" not in trigger  # AverageValue
    url = urlsplit(trigger["metadata"]["url"])
    assert (url.hostname or "").startswith("test-rota.")
    assert ("Service", "test-rota") in rendered
    assert parse_qs(url.query) == {"concurrency": ["50"], "within": ["60s"], "queues": ["fast,slow"]}
    parameters = {parameter["name"] for parameter in client_document()["paths"][url.path]["get"]["parameters"]}
    assert set(parse_qs(url.query)) <= parameters
    assert trigger["metadata"]["valueLocation"] == "wanted_workers"
    secret = rendered["TriggerAuthentication", trigger["authenticationRef"]["name"]]["spec"]["secretTargetRef"]
    assert secret == [{"parameter": "token", "name": "rota-keda", "key": "api-key"}]


def test_only_servers_get_the_secret_of_the_provider(render: Render) -> None:
    specs = pods(objects(render(EVERYTHING)))
    volumes = {name: [volume["name"] for volume in spec["volumes"]] for name, spec in specs.items()}
    assert [name for name, names in volumes.items() if "oidc" in names] == ["test-rota-server"]
    (volume,) = [volume for volume in specs["test-rota-server"]["volumes"] if volume["name"] == "oidc"]
    assert volume["secret"] == {"secretName": "sign-in", "items": [{"key": "secret", "path": "client-secret"}]}
    (server,) = specs["test-rota-server"]["containers"]
    env = {variable["name"]: variable["value"] for variable in server["env"]}
    assert env["ROTA_OIDC_CLIENT_SECRET_FILE"] == "/run/secrets/oidc/client-secret"
    assert {"name": "oidc", "mountPath": "/run/secrets/oidc", "readOnly": True} in server["volumeMounts"]


def test_workers_have_a_metrics_port_with_probes(render: Render) -> None:
    rendered = objects(render({**DATABASE, "metrics": {"workerPort": 9999, "annotations": True}}))
    (worker,) = pods(rendered)["test-rota-worker"]["containers"]
    env = {variable["name"]: variable["value"] for variable in worker["env"]}
    assert (env["ROTA_METRICS_PORT"], env["ROTA_METRICS_HOST"]) == ("9999", "0.0.0.0")
    assert worker["ports"] == [{"name": "metrics", "containerPort": 9999}]
    paths = {probe: worker[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe", "startupProbe")}
    assert set(paths.values()) == {"/health/ready", "/health/live"}
    annotations = rendered["Deployment", "test-rota-worker"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == "9999"


@pytest.mark.parametrize(("secret", "kind"), [("rota-key", "ServiceMonitor"), ("", "PodMonitor")])
def test_the_prometheus_operator_scrapes_servers_with_a_key_or_workers(render: Render, secret: str, kind: str) -> None:
    values = {"metrics": {"serviceMonitor": {"enabled": True, "keySecret": secret, "labels": {"release": "prom"}}}}
    rendered = objects(render({**DATABASE, **values}))
    ((name, monitor),) = [(name, each) for (each_kind, name), each in rendered.items() if each_kind == kind]
    assert name.startswith("test-rota")
    assert monitor["metadata"]["labels"]["release"] == "prom"
    workload = "test-rota-server" if secret else "test-rota-worker"
    labels = rendered["Deployment", workload]["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["spec"]["endpoints" if secret else "podMetricsEndpoints"]
    assert endpoint["path"] == "/metrics"
    ports = pods(rendered)[workload]["containers"][0]["ports"]
    assert endpoint["port"] in [port["name"] for port in ports]


def test_helm_has_no_complaint(tmp_path: Path) -> None:
    if shutil.which("helm") is None:
        pytest.skip("helm is not installed")
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(EVERYTHING))
    command = ["helm", "lint", "--strict", str(CHART), "--values", str(tmp_path / "values.yaml")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_notes_name_the_objects(render: Render) -> None:
    if shutil.which("helm"):
        pytest.skip("helm template prints no notes")
    notes = render(DATABASE)["NOTES.txt"]
    assert "deploy/test-rota-server" in notes
    assert "service/test-rota 8420:80" in notes
    assert "No program is set" in notes


def test_the_metric_of_the_autoscaler_exists() -> None:
    assert "rota_queue_oldest_ready_seconds" in GAUGES


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize("values", [DATABASE, {**DATABASE, **KEDA}, {**DATABASE, **WANTED}, EVERYTHING])
def test_the_schema_accepts_right_values(values: dict[str, Any]) -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(all_values(values), SCHEMA)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "'' should be non-empty"),
        ({"replicas": 3}, "Additional properties are not allowed ('replicas' was unexpected)"),
        ({"worker": {"replicas": "two"}}, "'two' is not of type 'integer'"),
        ({"worker": {"autoscaling": {"enabled": True}}}, "'' should be non-empty"),
        ({"worker": {"autoscaling": {"enabled": True, "signal": "wanted-workers"}}}, "'' should be non-empty"),
        ({"worker": {"autoscaling": {"signal": "queue"}}}, "'queue' is not one of ['oldest-ready', 'wanted-workers']"),
        ({"server": {"readinessPath": "/"}}, "'/' is not one of ['/health/ready', '/health/live']"),
        ({"publicUrl": "rota.example"}, "'rota.example' does not match"),
        ({"settings": {"LOG_LEVEL": "debug"}}, "'LOG_LEVEL' does not match"),
        ({"settings": {"ROTA_DATABASE_URL": "postgresql://"}}, "should not be valid under"),
        ({"settings": {"ROTA_OIDC_CLIENT_SECRET": "secret"}}, "should not be valid under"),
        ({"oidc": {"existingSecret": "Sign In"}}, "'Sign In' does not match"),
        ({"oidc": {"clientSecret": "secret"}}, "Additional properties are not allowed ('clientSecret' was unexpected)"),
        ({"server": {"resources": {"limits": {"memory": "1 GB"}}}}, "'1 GB' does not match"),
    ],
)
def test_the_schema_refuses_wrong_values(values: dict[str, Any], message: str) -> None:
    base = {} if not values else DATABASE
    errors = [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(all_values({**base, **values}))]
    assert len(errors) == 1
    assert message in errors[0]


def test_every_value_is_in_the_schema() -> None:
    def undescribed(values: Mapping[str, Any], schema: Mapping[str, Any], path: str = "") -> list[str]:
        missing = []
        for name, value in values.items():
            if name not in schema.get("properties", {}):
                missing.append(f"{path}{name}")
            elif isinstance(value, dict) and "properties" in schema["properties"][name]:
                missing += undescribed(value, schema["properties"][name], f"{path}{name}.")
        return missing

    assert undescribed(all_values({}), SCHEMA) == []
