"""Pods that run once, migrations and the storage check, succeed with the rendered environment.

The other pod of `helm test` is tested in test_environment.py, with the processes that it checks.
"""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_postgres.lock_waits import LockRetry
from spawnmesh_postgres.schema_version import wait_for_schema

from tests.support.deploy.pod_here import Secrets, pod_of, run_container, storage_stand_ins
from tests.support.deploy.rendering import Object, of_kind

SERVED = ("session", "attachment-blob", "transcript", "model-router", "hook")
PREPARED = ("session", "attachment_blob", "transcript", "model_router", "hook")


@pytest.fixture
def secrets(postgres: Postgres, s3: S3Endpoint, keys: Path) -> dict[str, dict[str, str]]:
    """Return the secrets that an operator creates, for a database that does not exist yet."""
    database = f"installed_{uuid4().hex[:12]}"
    urls = {"admin-url": postgres.superuser_dsn}
    for service, role in zip(SERVED, PREPARED, strict=True):
        for key, user in ((f"{service}-url", role), (f"{service}-owner-url", f"{role}_owner")):
            urls[key] = make_conninfo(postgres.superuser_dsn, user=user, dbname=database)
    return {
        "spawnmesh-postgresql": urls,
        "spawnmesh-s3": {"access-key": s3.access_key, "secret-key": s3.secret_key},
        "spawnmesh-tokens": {file.name: file.read_text() for file in keys.iterdir()},
    }


@pytest.fixture
def over(tmp_path: Path) -> str:
    """Write values over the minimal ones: the database is created, and nothing here has TLS."""
    file = tmp_path / "over.yaml"
    file.write_text(
        "{postgresql: {prepare: true}, s3: {secure: false}, tls: {mode: none}, networkPolicy: {s3: {ports: [443, 80]}}}\n"
    )
    return str(file)


def migration(over: str) -> Object:
    """Return the pod of the migration job."""
    pod: Object = of_kind("Job", "minimal", over)["migrate"]["spec"]["template"]["spec"]
    return pod


async def test_migration_job_prepares_an_empty_server(
    fork_server: ForkServer, tmp_path: Path, over: str, secrets: dict[str, dict[str, str]]
) -> None:
    pod = migration(over)
    (prepare,) = pod["initContainers"]
    ended = await run_container(fork_server, pod, prepare, tmp_path / "prepare", secrets, {})
    assert (ended.code, "prepared for" in ended.printed) == (0, True), ended.printed
    assert {container["name"] for container in pod["containers"]} == set(SERVED)
    ended_together = await asyncio.gather(
        *(
            run_container(fork_server, pod, one, tmp_path / one["name"], secrets, {})
            for one in pod["containers"]
        )
    )
    assert [one.code for one in ended_together] == [0] * len(SERVED), ended_together
    async with asyncio.timeout(60):
        for service, role in zip(SERVED, PREPARED, strict=True):
            url = secrets["spawnmesh-postgresql"][f"{service}-url"]
            await wait_for_schema(url, package=f"spawnmesh_{role}")
    job = of_kind("CronJob", "minimal", over)["audit-retention"]["spec"]["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    (retention,) = pod["containers"]
    assert retention["args"][1] == "365"
    ended = await run_container(fork_server, pod, retention, tmp_path / "retention", secrets, {})
    assert ended.code == 0, ended.printed
    assert {f"{service}: 0 events removed" for service in SERVED} <= set(ended.printed.splitlines())


def test_audit_events_are_kept_forever_if_the_values_say_so(tmp_path: Path) -> None:
    over = tmp_path / "over.yaml"
    over.write_text("audit: {retentionDays: 0}\n")
    assert of_kind("CronJob", "minimal", str(over)) == {}


async def test_migration_of_a_missing_database_fails_and_says_so(
    fork_server: ForkServer, tmp_path: Path, over: str, secrets: Secrets
) -> None:
    pod = migration(over)
    container = pod["containers"][0]
    ended = await run_container(fork_server, pod, container, tmp_path / "none", secrets, {})
    assert ended.code == 1
    assert "Traceback" not in ended.printed
    assert "refuses the login" in ended.printed


def test_migration_gives_up_on_a_lock_while_its_job_still_has_a_minute() -> None:
    job = of_kind("Job", "minimal")["migrate"]["spec"]
    assert LockRetry().seconds + 60 <= job["activeDeadlineSeconds"]


async def test_storage_check_of_helm_test_finds_tenants_isolated(
    fork_server: ForkServer, tmp_path: Path, over: str, secrets: Secrets, s3: S3Endpoint
) -> None:
    pod, container = pod_of("storage", "minimal", over)
    ended = await run_container(fork_server, pod, container, tmp_path, secrets, storage_stand_ins(s3))
    assert ended.code == 0, ended.printed
    assert ended.printed.startswith("ok ")
