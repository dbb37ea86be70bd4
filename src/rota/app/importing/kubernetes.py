"""CronJobs of Kubernetes as entries of files. Pure. Fields without a counterpart are reported by name."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import yaml

from rota.app.files.documents import DEPTH_MAX, NODES_MAX, FileError
from rota.app.importing.cron_words import day_or_day
from rota.app.importing.patterns import NotConvertible, interval_fields
from rota.app.importing.report import Entries, Imported
from rota.app.importing.sources import SourceFile
from rota.core.policy import OVERLAP_NAMES
from rota.core.timing.triggers import parse_zone
from rota.db.paging import Record

DOCUMENTS_MAX = 1_000
NOTES_MAX = 12
BACKOFF_LIMIT = 6  # of a job that sets none
RETRY = {"backoff_ms": 10_000, "backoff_type": "exponential", "max_backoff_ms": 360_000}  # of the job controller
VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
EVERY = re.compile(r"@every ((?:\d+(?:\.\d+)?(?:h|m|s|ms))+)")
SPAN_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
WITHOUT_EFFECT = {"status", "apiVersion", "kind"}


class Reader:
    """Reads the fields of an object and notes those that nothing reads, as `spec.ttlSecondsAfterFinished`."""

    def __init__(self, value: object, path: str, lost: list[str]) -> None:
        if not isinstance(value, dict):
            raise NotConvertible(f"{path or 'the document'} is not an object")
        self.value, self.path, self.lost = value, path, lost
        self.left = {str(name) for name, item in value.items() if item not in (None, {}, [], "")}

    def take(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return a field, None if it is absent. Raises NotConvertible if it is of another type."""
        self.left.discard(name)
        value = self.value.get(name)
        if value is None or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
            return value
        raise NotConvertible(f"{self.at(name)} is {value!r}, which is not valid")

    def within(self, name: str) -> "Reader":
        """Return the reader of an object that is a field."""
        return Reader(self.take(name, dict) or {}, self.at(name), self.lost)

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def done(self) -> None:
        self.lost += [self.at(name) for name in sorted(self.left - WITHOUT_EFFECT)]


def import_cron_jobs(
    sources: Sequence[SourceFile], *, now: datetime, timezone: str = "UTC", prefix: str = "kube"
) -> Imported:
    """Return a task and a schedule for each CronJob. `timezone` is that of the cluster. Raises Invalid for an unknown
    one, FileError for a file that is neither YAML nor JSON, or too large."""
    zone = parse_zone(timezone)
    imported = Imported()
    for source in sources:
        count = 0
        for line, document in documents_of(source):
            count += 1
            add_document(imported, source.name, line, document, zone, now, prefix)
        if not count:
            imported.refuse(source.name, 1, source.name, "has no document")
    return imported


def documents_of(source: SourceFile) -> Iterator[tuple[int, object]]:
    """Yield the documents of a file with their lines, those of a List by themselves. Raises FileError."""
    if source.text.lstrip()[:1] in ("{", "["):
        try:
            yield from items_of(1, json.loads(source.text))
        except (ValueError, RecursionError) as error:
            raise FileError(f"{source.name}: is not JSON: {error}") from None
        return
    try:
        check_size(source)
        for number, node in enumerate(yaml.compose_all(source.text, yaml.SafeLoader)):
            if number >= DOCUMENTS_MAX:
                raise FileError(f"{source.name}: has more than {DOCUMENTS_MAX} documents")
            if node is not None:
                constructor = yaml.SafeLoader("")
                yield from items_of(node.start_mark.line + 1, constructor.construct_document(node))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise FileError(f"{source.name}:{line}: {error.problem or 'is not YAML'}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FileError(f"{source.name}: is not YAML: {str(error).splitlines()[0]}") from None


def check_size(source: SourceFile) -> None:
    """Raise FileError for a file that is too deep or has too many values, before anything is built from it. Aliases are
    refused: a few lines of them can stand for billions of values."""
    depth = 0
    for number, event in enumerate(yaml.parse(source.text, yaml.SafeLoader)):
        place = f"{source.name}:{event.start_mark.line + 1}" if event.start_mark else source.name
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if number > NODES_MAX or depth > DEPTH_MAX:
            raise FileError(f"{place}: has more than {NODES_MAX} values or {DEPTH_MAX} levels")
        if isinstance(event, yaml.AliasEvent):
            raise FileError(f"{place}: aliases are not allowed; repeat the value")


def items_of(line: int, document: object) -> Iterator[tuple[int, object]]:
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield line, item
    elif document is not None:
        yield line, document


def add_document(
    imported: Imported, file: str, line: int, document: object, zone: str, now: datetime, prefix: str
) -> None:
    """Add the task and the schedule of a document, and report it."""
    kind, name = "?", "?"
    if isinstance(document, dict):
        metadata = document.get("metadata")
        kind = str(document.get("kind", "?"))
        name = str(metadata.get("name", "?")) if isinstance(metadata, dict) else "?"

    def make() -> Entries:
        if kind != "CronJob":
            raise NotConvertible("is not a CronJob")
        return entries_of(imported, document, name, zone, prefix)

    imported.take((file, line, f"{kind} {name}"), make, now)


def entries_of(imported: Imported, document: object, base: str, zone: str, prefix: str) -> Entries:
    """Return the task and the schedule of a CronJob. Raises NotConvertible and Invalid."""
    lost: list[str] = []
    notes: list[str] = []
    root = Reader(document, "", lost)
    metadata = root.within("metadata")
    if (namespace := metadata.take("namespace", str)) not in (None, "default"):
        notes.append(f"namespace {namespace}")
    metadata.take("name", str)
    spec = root.within("spec")
    schedule = schedule_of(spec, zone, notes)
    job = spec.within("jobTemplate")
    job_spec = job.within("spec")
    task = task_of(job_spec, notes)
    schedule["retry"] = {"max_retries": limit, **RETRY} if (limit := backoff_limit(job_spec)) else {"max_retries": 0}
    if (deadline := job_spec.take("activeDeadlineSeconds", int)) is not None:
        schedule["timeout_seconds"] = deadline
    for reader in (root, metadata, spec, job, job_spec):
        reader.done()
    if lost:
        more = f" and {len(lost) - NOTES_MAX} more" if len(lost) > NOTES_MAX else ""
        notes.append(f"not carried over: {', '.join(lost[:NOTES_MAX])}{more}")
    name = imported.name_for(base, prefix)
    return Entries(
        [{"name": name, "target": name, **schedule, "tags": ["kubernetes"]}],
        [{"name": name, **task}],
        notes,
        f"schedule {name}",
    )


def backoff_limit(job_spec: Reader) -> int:
    """Return the number of retries."""
    limit = job_spec.take("backoffLimit", int)
    return BACKOFF_LIMIT if limit is None else min(int(limit), 1000)


def schedule_of(spec: Reader, zone: str, notes: list[str]) -> Record:
    """Return the timing and the policies of a CronJob."""
    text = spec.take("schedule", str)
    if not text:
        raise NotConvertible("has no schedule")
    zone = parse_zone(spec.take("timeZone", str) or zone)
    if prefix := re.match(r"(?:CRON_)?TZ=(\S+)\s+", text):
        zone, text = parse_zone(prefix[1]), text[prefix.end() :]
    if every := EVERY.fullmatch(text.strip()):
        parts = re.findall(r"(\d+(?:\.\d+)?)(h|ms|m|s)", every[1])
        fields = interval_fields(timedelta(seconds=sum(float(number) * SPAN_UNITS[unit] for number, unit in parts)))
    else:
        fields = {"cron_expression": day_or_day(text), "timezone": zone}
    policy = spec.take("concurrencyPolicy", str) or "Allow"
    if policy not in OVERLAP_NAMES:
        raise NotConvertible(f"spec.concurrencyPolicy is {policy!r}, which is not valid")
    fields |= {"overlap": OVERLAP_NAMES[policy].value, "misfire": "once"}  # the controller runs the latest missed slot
    if (deadline := spec.take("startingDeadlineSeconds", int)) is not None:
        fields["start_deadline_seconds"] = max(1, deadline)
    if spec.take("suspend", bool):
        fields["enabled"] = False
        notes.append("suspended: the schedule is disabled")
    return fields


def task_of(job_spec: Reader, notes: list[str]) -> Record:
    """Return the shell task of the only container of a pod. Raises NotConvertible if there are several, or if the
    command is that of the image."""
    for name in ("parallelism", "completions"):
        if (job_spec.take(name, int) or 1) != 1:
            raise NotConvertible(f"{job_spec.at(name)} is not 1")
    template = job_spec.within("template")
    pod = template.within("spec")
    pod.take("restartPolicy", str)
    if pod.take("initContainers", list):
        raise NotConvertible("has initContainers")
    containers = pod.take("containers", list) or []
    if len(containers) != 1:
        raise NotConvertible(f"has {len(containers)} containers; one is needed")
    container = Reader(containers[0], pod.at("containers[0]"), job_spec.lost)
    container.take("name", str)
    words = container.take("command", list)
    arguments = container.take("args", list) or []
    if not words:
        raise NotConvertible("has no command: that of the image is not known")
    variables, unknown = env_of(container)
    task: Record = {"command": " ".join(shell_word(str(word), variables) for word in [*words, *arguments])}
    if unknown:
        notes.append(f"environment variables without a value here: {', '.join(unknown)}")
    if variables:
        task["env"] = variables
    if directory := container.take("workingDir", str):
        task["cwd"] = directory
    image = container.take("image", str)
    if image:
        notes.append(f"image {image}: the command runs on the machine of the worker")
    for reader in (template, pod, container):
        reader.done()
    return task


def env_of(container: Reader) -> tuple[dict[str, str], list[str]]:
    """Return the environment variables with a value, and the names of the others."""
    variables: dict[str, str] = {}
    unknown = []
    for number, item in enumerate(container.take("env", list) or []):
        entry = Reader(item, container.at(f"env[{number}]"), [])
        name, value = entry.take("name", str), entry.take("value", str)
        if not name:
            raise NotConvertible(f"{entry.path} has no name")
        if "valueFrom" in entry.left:
            unknown.append(name)
        else:
            variables[name] = expanded(value or "", variables)
    return variables, unknown


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variables before; `$$` is a dollar."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    result = VARIABLE.sub(value, text)
    if len(result) > 100_000:
        raise NotConvertible("has an environment variable that is too long")
    return result


def shell_word(text: str, variables: Mapping[str, str]) -> str:
    """Return a word of a command, quoted for a shell, with its `$(NAME)` replaced as Kubernetes does."""
    return shlex.quote(expanded(text, variables))
