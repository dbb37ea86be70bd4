"""The objects of a run on Kubernetes: a Job, from the task's template, and a Secret with parameters and variables."""

from collections.abc import Mapping
from typing import Any

from rota.engine.runner import RunContext
from rota.kinds.tasks.executors.container_options import Container

PULL_POLICIES = {"missing": "IfNotPresent", "always": "Always", "never": "Never"}
PARAMETERS = "/rota"  # the folder of the file with the parameters
STDIN = 'exec /bin/sh -c "$0" < /rota/stdin'  # the command is an argument
KEEP_SECONDS = 3600  # of a Job that has ended, when its worker is lost
MAIN = "main"

Manifest = dict[str, Any]


def name_of(ctx: RunContext) -> str:
    return f"rota-{ctx.run_id}-{ctx.attempt}".lower()


def labels_of(ctx: RunContext) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "rota", "rota/job": ctx.job.id.lower(), "rota/run": name_of(ctx)}


def make_secret(ctx: RunContext, variables: Mapping[str, str], stdin: str) -> Manifest:
    metadata = {"name": name_of(ctx), "labels": labels_of(ctx)}
    data = {"stdin": stdin, **{f"env.{name}": value for name, value in variables.items()}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": data}


def make_job(
    ctx: RunContext, container: Container, command: str, variables: Mapping[str, str], seconds: float | None
) -> Manifest:
    """Return the Job of a run: the template of its task, with what the run must have. It has one attempt, because Rota
    decides about others, and ends by itself after `seconds`."""
    job = merged(container.manifest or {}, {"apiVersion": "batch/v1", "kind": "Job"})
    job["metadata"] = merged(job.get("metadata", {}), {"name": name_of(ctx), "labels": labels_of(ctx)})
    job["metadata"].pop("generateName", None)
    spec = job["spec"] = merged(job.get("spec", {}), {"backoffLimit": 0, "ttlSecondsAfterFinished": KEEP_SECONDS})
    if seconds is not None:
        spec["activeDeadlineSeconds"] = max(1, round(seconds))
    template = spec["template"] = merged(spec.get("template", {}), {})
    template["metadata"] = merged(template.get("metadata", {}), {"labels": labels_of(ctx)})
    pod = template["spec"] = merged(template.get("spec", {}), {"restartPolicy": "Never"})
    pod["terminationGracePeriodSeconds"] = max(1, round(ctx.cancel_grace.total_seconds()))
    pod["volumes"] = [*pod.get("volumes", []), {"name": "rota", "secret": {"secretName": name_of(ctx)}}]
    containers = [dict(entry) for entry in pod.get("containers", [])] or [{}]
    containers[0] = main_container(ctx, containers[0], container, command, variables)
    pod["containers"] = containers
    return job


def main_container(
    ctx: RunContext, template: Mapping[str, Any], container: Container, command: str, variables: Mapping[str, str]
) -> Manifest:
    limits = {
        "memory": container.memory_mb and f"{container.memory_mb}Mi",
        "cpu": container.cpus and f"{container.cpus:g}",
    }
    secret = name_of(ctx)
    main = merged(
        template,
        {
            "name": template.get("name", MAIN),
            "image": container.image,
            "command": ["/bin/sh", "-c", STDIN, command],
            "resources": {"limits": {name: str(value) for name, value in limits.items() if value}},
        },
    )
    main.pop("args", None)
    if container.pull != "missing" or "imagePullPolicy" not in main:
        main["imagePullPolicy"] = PULL_POLICIES[container.pull]
    if container.cwd is not None:
        main["workingDir"] = container.cwd
    references = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": f"env.{name}"}}} for name in variables
    ]
    main["env"] = [entry for entry in main.get("env", []) if entry["name"] not in variables] + references
    mount = {"name": "rota", "mountPath": PARAMETERS, "readOnly": True}
    main["volumeMounts"] = [*main.get("volumeMounts", []), mount]
    return main


def merged(template: Mapping[str, Any], wanted: Mapping[str, Any]) -> Manifest:
    """Return a template with other fields on top; objects in both are merged."""
    result = dict(template)
    for name, value in wanted.items():
        old = result.get(name)
        result[name] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
