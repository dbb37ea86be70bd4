"""CronJobs of Kubernetes become shell tasks with schedules; fields without a counterpart are reported by name."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rota.app.cli import app
from rota.app.files.documents import FileError
from rota.app.importing.kubernetes import import_cron_jobs
from rota.app.importing.report import Imported
from rota.app.importing.sources import SourceFile
from tests.app.harness import Api
from tests.app.importing.slots import next_slots

NOW = datetime(2026, 11, 18, 19, 0, 10, tzinfo=UTC)
MANIFESTS = """apiVersion: batch/v1
kind: CronJob
metadata:
  name: report
  namespace: shop
  labels: {app: shop}
spec:
  schedule: "30 7 * * 1-5"
  timeZone: Europe/Oslo
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 200
  suspend: true
  successfulJobsHistoryLimit: 3
  jobTemplate:
    spec:
      backoffLimit: 2
      activeDeadlineSeconds: 600
      ttlSecondsAfterFinished: 100
      template:
        spec:
          restartPolicy: OnFailure
          serviceAccountName: reporter
          containers:
            - name: report
              image: shop:1.2
              command: ["/bin/sh", "-c"]
              args: ["echo $HOME $(MODE) $$(MODE) && date"]
              workingDir: /srv
              env:
                - {name: MODE, value: full}
                - {name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}
              volumeMounts: [{name: data, mountPath: /data}]
          volumes: [{name: data, emptyDir: {}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
---
# only a comment
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: by-image}
spec:
  schedule: "@hourly"
  jobTemplate: {spec: {template: {spec: {containers: [{name: a, image: b}]}}}}
"""


def read(text: str, name: str = "jobs.yaml") -> Imported:
    return import_cron_jobs([SourceFile(name, text)], now=NOW)


def cron_job(schedule: str, **spec: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "a", "image": "b", "command": ["/bin/true"]}]}
    template = {"spec": {"backoffLimit": 0, "template": {"spec": pod}}}
    return {
        "kind": "CronJob",
        "metadata": {"name": "a"},
        "spec": {"schedule": schedule, "jobTemplate": template, **spec},
    }


def test_each_document_is_reported_with_the_fields_that_are_lost() -> None:
    imported = read(MANIFESTS)
    assert [(line.line, line.outcome, line.text) for line in imported.report] == [
        (1, "partly", "CronJob report"),
        (35, "not imported", "Deployment web"),
        (41, "not imported", "CronJob by-image"),
    ]
    note = imported.report[0].note
    for lost in (
        "namespace shop", "metadata.labels", "spec.successfulJobsHistoryLimit", "image shop:1.2", "TOKEN", "suspended",
        "spec.jobTemplate.spec.ttlSecondsAfterFinished", "spec.jobTemplate.spec.template.spec.volumes",
        "spec.jobTemplate.spec.template.spec.serviceAccountName", "containers[0].volumeMounts",
    ):  # fmt: skip
        assert lost in note
    assert imported.report[2].note == "has no command: that of the image is not known"
    assert imported.tasks == [
        {
            "name": "kube-report",
            "command": "/bin/sh -c 'echo $HOME full $(MODE) && date'",
            "env": {"MODE": "full"},
            "cwd": "/srv",
        }
    ]
    assert imported.schedules == [
        {
            "name": "kube-report", "target": "kube-report", "cron_expression": "30 7 * * 1-5",
            "timezone": "Europe/Oslo", "overlap": "skip", "misfire": "once", "start_deadline_seconds": 200,
            "enabled": False,
            "retry": {"max_retries": 2, "backoff_ms": 10_000, "backoff_type": "exponential", "max_backoff_ms": 360_000},
            "timeout_seconds": 600, "tags": ["kubernetes"],
        }
    ]  # fmt: skip


def test_lists_json_and_zones_in_the_schedule_are_read() -> None:
    jobs = [cron_job("TZ=Asia/Tokyo 0 5 * * *"), cron_job("@every 1h30m", concurrencyPolicy="Replace")]
    imported = read(json.dumps({"kind": "List", "items": jobs}), "jobs.json")
    first, second = imported.schedules
    assert (first["timezone"], first["retry"]) == ("Asia/Tokyo", {"max_retries": 0})
    assert (second["name"], second["interval_seconds"], second["overlap"]) == ("kube-a-2", 5400, "replace")


@pytest.mark.parametrize(
    ("schedule", "days"),
    [("0 0 */10 * 1", [21, 23, 30, 1]), ("0 0 13 * ?", [13, 13, 13, 13]), ("0 0 */10 * *", [21, 1, 11, 21])],
)
def test_a_step_restricts_a_day_as_in_kubernetes(schedule: str, days: list[int]) -> None:
    """The library of Kubernetes combines `*/10` with a weekday by OR, that of Debian by AND."""
    (fields,) = read(json.dumps(cron_job(schedule))).schedules
    assert [slot.day for slot in next_slots(fields, NOW, 4)] == days


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schedule": "61 * * * *"}, "minute"),
        ({"schedule": 5}, "spec.schedule is 5"),
        ({"timeZone": "Mars/Base"}, "IANA"),
        ({"concurrencyPolicy": "Often"}, "concurrencyPolicy"),
        ({"startingDeadlineSeconds": "5"}, "startingDeadlineSeconds"),
        ({"jobTemplate": []}, "jobTemplate"),
        ({"jobTemplate": {"spec": {"parallelism": 3}}}, "parallelism is not 1"),
        ({"jobTemplate": {"spec": {"template": {"spec": {"initContainers": [{}]}}}}}, "initContainers"),
        ({"jobTemplate": {"spec": {"template": {"spec": {"containers": [1]}}}}}, "is not an object"),
        ({"jobTemplate": {"spec": {"template": {"spec": {"containers": []}}}}}, "0 containers"),
    ],
)
def test_a_cron_job_that_cannot_be_read_is_not_imported(change: dict[str, Any], reason: str) -> None:
    job = cron_job("0 0 * * *")
    imported = read(yaml.safe_dump({**job, "spec": {**job["spec"], **change}}))
    assert not imported.schedules
    assert not imported.tasks
    (line,) = imported.report
    assert line.outcome == "not imported"
    assert reason in line.note


@pytest.mark.parametrize(
    "text",
    ["a: [1", "a: &x 1\nb: *x", "a: !!python/object:os.system x", "{", "[" * 2000, "- " * 100, "a: 1\n---\n\t- b"],
)
def test_files_that_are_not_manifests_are_refused(text: str) -> None:
    with pytest.raises(FileError):
        read(text)


async def test_imported_cron_jobs_can_be_applied(api: Api) -> None:
    answer = await api.call("POST", "/files/$apply", {"resources": read(MANIFESTS).resources})
    assert answer.status_code == 200, answer.text
    assert (await api.get("/schedules/kube-report"))["enabled"] is False


def test_the_command_writes_files(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(MANIFESTS)
    made = CliRunner().invoke(app, ["import", "kubernetes", str(tmp_path / "jobs.yaml"), "-d", str(tmp_path / "out")])
    assert made.exit_code == 0, made.stderr
    assert "kube-report" in (tmp_path / "out" / "kubernetes.yaml").read_text()
    (tmp_path / "jobs.yaml").write_text("a: [1")
    assert CliRunner().invoke(app, ["import", "kubernetes", str(tmp_path / "jobs.yaml")]).exit_code == 2
