"""An API server of Kubernetes for tests. It checks what is created against the published schema, and plays the states
of pods, whose commands it runs as processes of this machine."""

import json
import os
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

VERSION = "1.37"
TOKEN = "a-token-of-a-service-account"
Record = dict[str, Any]


class FakeKubernetes:
    """The objects of a namespace, and the processes of its pods."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects: dict[tuple[str, str], Record] = {}  # by resource and name
        self.processes: dict[str, subprocess.Popen[bytes]] = {}  # by pod
        self.logs: dict[str, Path] = {}
        self.created: list[Record] = []  # all objects that clients created
        self.home = Path(tempfile.mkdtemp(prefix="rota-kubernetes-"))
        self.status: int | None = None  # of all answers, if set
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                fake.answer(self)

            do_GET = do_POST = do_DELETE = handle_any

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def config(self, path: Path, token: str = TOKEN) -> str:
        """Write a kubeconfig file and return its path."""
        named = {
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "rota", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "test", "user": "rota", "namespace": "work"}}],
        }
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "c", **named}))
        return str(path)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        parts = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        prefix, _, rest = parts.path.partition("/namespaces/work/")
        resource, _, name = rest.partition("/")
        assert prefix == ("/apis/batch/v1" if resource == "jobs" else "/api/v1"), parts.path
        if request.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.send(request, 401, {"kind": "Status", "message": "Unauthorized"})
        if self.status is not None:
            return self.send(request, self.status, {"kind": "Status", "message": "as the test wants"})
        if name.endswith("/log"):
            return self.send_log(request, name.removesuffix("/log"))
        with self.lock:
            match request.command:
                case "POST":
                    return self.send(request, *self.create(resource, json.loads(body)))
                case "DELETE":
                    return self.send(request, *self.delete(resource, name))
                case _ if name:
                    stored = self.objects.get((resource, name))
                    return self.send(request, 200 if stored else 404, stored or {"message": f"{name} not found"})
                case _:
                    wanted = query["labelSelector"].split("=")
                    items = [
                        self.current(entry)
                        for (kind, _), entry in self.objects.items()
                        if kind == resource and entry["metadata"]["labels"].get(wanted[0]) == wanted[1]
                    ]
                    return self.send(request, 200, {"kind": "List", "items": items})

    def create(self, resource: str, entry: Record) -> tuple[int, Record]:
        try:
            kubernetes_validate.validate(entry, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            return 422, {"kind": "Status", "message": error.message}
        name = entry["metadata"]["name"]
        if (resource, name) in self.objects:
            return 409, {"kind": "Status", "message": f"{resource} {name!r} already exists"}
        self.objects[resource, name] = entry
        self.created.append(entry)
        if resource == "jobs":
            template = entry["spec"]["template"]
            metadata = {**template["metadata"], "name": f"{name}-abcde"}
            self.objects["pods", metadata["name"]] = {"metadata": metadata, "spec": template["spec"], "status": {}}
        return 201, entry

    def delete(self, resource: str, name: str) -> tuple[int, Record]:
        entry = self.objects.pop((resource, name), None)
        if entry is None:
            return 404, {"kind": "Status", "message": f"{name} not found"}
        if resource == "jobs":
            pod = f"{name}-abcde"
            if (process := self.processes.get(pod)) is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                grace = entry["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
                threading.Timer(grace, self.kill, [pod]).start()
            else:
                self.objects.pop(("pods", pod), None)
        return 200, entry

    def kill(self, pod: str) -> None:
        with suppress(OSError):
            os.killpg(self.processes[pod].pid, signal.SIGKILL)

    def current(self, pod: Record) -> Record:
        """Move a pod on: pending, running, ended. One whose Job was deleted goes when its process has ended."""
        name, status = pod["metadata"].get("name"), pod.get("status")
        if status is None or status.get("phase") in ("Failed", "Succeeded"):
            return pod
        process = self.processes.get(name)
        if not status:
            pod["status"] = {"phase": "Pending", **state_of(pod, {"waiting": {"reason": "ContainerCreating"}})}
        elif process is None:
            self.start(pod)
            pod["spec"]["nodeName"] = "node-1"
            pod["status"] = {"phase": "Running", **state_of(pod, {"running": {}})}
        elif (code := process.poll()) is not None:
            exit_code = code if code >= 0 else 128 - code
            phase = "Failed" if exit_code else "Succeeded"
            pod["status"] = {
                "phase": phase,
                **state_of(pod, {"terminated": {"exitCode": exit_code, "reason": "Error"}}),
            }
        return pod

    def start(self, pod: Record) -> None:
        name, main = pod["metadata"]["name"], pod["spec"]["containers"][0]
        secret = self.objects["secrets", pod["spec"]["volumes"][-1]["secret"]["secretName"]]["stringData"]
        stdin = self.home / f"{name}.stdin"
        stdin.write_text(secret["stdin"])
        env = {entry["name"]: secret[entry["valueFrom"]["secretKeyRef"]["key"]] for entry in main["env"]}
        words = [word.replace("/rota/stdin", str(stdin)) for word in main["command"]]
        self.logs[name] = self.home / f"{name}.log"
        with self.logs[name].open("wb") as log:
            self.processes[name] = subprocess.Popen(
                words, env={"PATH": os.environ["PATH"], **env}, stdout=log, stderr=log, start_new_session=True
            )

    def lose(self, pod: str) -> None:
        """The node of a pod is lost."""
        with self.lock:
            self.objects["pods", pod]["status"] = {"phase": "Failed", "reason": "NodeLost"}
        self.kill(pod)

    def send_log(self, request: BaseHTTPRequestHandler, pod: str) -> None:
        self.processes[pod].wait()
        self.send_bytes(request, 200, self.logs[pod].read_bytes(), "text/plain")

    def send(self, request: BaseHTTPRequestHandler, status: int, content: Record) -> None:
        self.send_bytes(request, status, json.dumps(content).encode(), "application/json")

    def send_bytes(self, request: BaseHTTPRequestHandler, status: int, content: bytes, kind: str) -> None:
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def close(self) -> None:
        for pod in self.processes:
            self.kill(pod)
        self.server.shutdown()
        self.server.server_close()


def state_of(pod: Record, state: Record) -> Record:
    return {"containerStatuses": [{"name": pod["spec"]["containers"][0]["name"], "state": state}]}
