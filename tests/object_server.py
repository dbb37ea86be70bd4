"""A real S3 server for tests: moto's, in a process of its own on loopback. What it stores ends with it."""

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import httpx

BUCKET = "artifacts"
REGION = "us-east-1"
ACCESS_KEY = "AKIATESTTESTTESTTEST"
SECRET_KEY = "not-a-secret-of-anyone"
START_SECONDS = 120.0


class ObjectServer:
    """`with ObjectServer() as server`: an S3 server with an empty bucket. It keeps its address over `stop` and
    `start`."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/rota"

    def start(self) -> None:
        """Start, and return when the bucket exists."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                httpx.put(f"{self.endpoint}/{BUCKET}", timeout=30).raise_for_status()
                return
            except httpx.TransportError:
                assert self.process.poll() is None, "the S3 server ended"
                assert time.monotonic() < deadline, "the S3 server did not start"
                time.sleep(0.05)

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def check_keys(self, required: bool) -> None:
        """With `required`, every request must be signed by a key that exists, and none does."""
        count = b"0" if required else b"inf"  # of further requests without a check
        httpx.post(f"{self.endpoint}/moto-api/reset-auth", content=count).raise_for_status()

    def stored_keys(self) -> list[str]:
        """Return the keys of all objects."""
        client = self.client()
        return sorted(item["Key"] for item in client.list_objects_v2(Bucket=BUCKET).get("Contents", []))

    def uploads(self) -> int:
        """Return the number of unfinished uploads in parts."""
        return len(self.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads", []))

    def client(self) -> Any:
        """Return the client of another library than the one that Rota uses."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def peak_memory(pid: int) -> int:
    """Return the largest resident size of a process so far, in bytes. Linux only."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
