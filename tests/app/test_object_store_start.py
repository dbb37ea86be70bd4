"""An object store that cannot be used is refused at the start and named by `rota doctor`, with what to do."""

from pathlib import Path

import pytest

from tests.app.command_line import run
from tests.object_server import SECRET_KEY


@pytest.fixture
def migrated(tmp_path: Path) -> Path:
    assert run(tmp_path, "migrate").returncode == 0
    return tmp_path


def test_a_process_does_not_start_with_a_store_that_does_not_answer(migrated: Path) -> None:
    away = {
        "ROTA_ARTIFACTS_URL": "s3://artifacts/rota",
        "ROTA_ARTIFACTS_ENDPOINT": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    }
    message = "object store s3://artifacts/rota is not available"
    remedy = (
        "check ROTA_ARTIFACTS_URL, ROTA_ARTIFACTS_ENDPOINT, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION"
    )
    for command in ("worker", "doctor"):
        ended = run(migrated, command, **away)
        shown = " ".join((ended.stdout + ended.stderr).split())
        assert ended.returncode == 1, shown
        assert message in shown
        assert remedy in shown
        assert SECRET_KEY not in shown


def test_doctor_says_where_artifacts_are(migrated: Path) -> None:
    assert "in the database" in run(migrated, "doctor").stdout
    folder = migrated / "objects"
    ended = run(migrated, "doctor", "-o", "json", ROTA_ARTIFACTS_URL=folder.as_uri())
    assert f"above 256 KB in {folder.as_uri()}" in ended.stdout
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    ended = run(migrated, "doctor", ROTA_ARTIFACTS_URL="ftp://host/path")
    assert "is not supported; use s3://bucket/prefix" in ended.stderr
