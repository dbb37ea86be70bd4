"""Spark for tests: of this process, and Spark Connect servers on loopback."""

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

LOCAL = "spark://local[2]"
READY_SECONDS = 240
SMALL = {  # for tables of a few rows: no code is generated, and there are few tasks
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def require_spark() -> str:
    """Return the URL of the Spark of this process, with settings for small tables. Skips the test without Spark."""
    if find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed: pip install 'rota-scheduler[spark]'")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("there is no Java: apt-get install openjdk-17-jre-headless")
    if "SPARK_LOCAL_DIRS" not in os.environ:  # Spark lives longer than a test
        place = tempfile.mkdtemp(prefix="rota-spark-")
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        Path(place, "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in SMALL.items()))
        os.environ["SPARK_CONF_DIR"] = os.environ["SPARK_LOCAL_DIRS"] = place
    return LOCAL


@contextmanager
def connect_server(place: Path) -> Iterator[str]:
    """Yield the URL of a new Spark Connect server, whose catalog is in its memory."""
    import pyspark

    home = Path(pyspark.__file__).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        **SMALL,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.network.timeout": "1h",
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [str(home / "bin/spark-submit"), "--master", "local[2]", *options]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (place / "server.log").open("w") as log:
        server = subprocess.Popen(command, cwd=place, env=environment, stdout=log, stderr=log)
    try:
        wait_for_port(server, port, place / "server.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


def wait_for_port(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    for _ in range(READY_SECONDS * 4):
        assert server.poll() is None, log.read_text()[-2000:]
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            with pytest.raises(subprocess.TimeoutExpired):
                server.wait(0.25)
    raise AssertionError(log.read_text()[-2000:])
