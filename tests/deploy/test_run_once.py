"""Pods that run to their end do so with what the chart gives them: the migration job, and both pods of `helm test`."""

import asyncio
import json
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.lock_waits import LockRetry
from spawnmesh_postgres.schema_version import wait_for_schema

from tests.support.deploy.environment import SERVING, Place, container_of, started, until
from tests.support.deploy.pod_here import Secrets, run_container
from tests.support.deploy.rendering import ROOT, Object, of_kind

SERVED = ("session", "attachment-blob", "transcript", "model-router", "hook")
PREPARED = ("session", "attachment_blob", "transcript", "model_router", "hook")


@pytest.fixture
def secrets(postgres: Postgres, s3: S3Endpoint, keys: Path) -> dict[str, dict[str, str]]:
    """What an operator puts into the cluster, for a database that is not there yet."""
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
    """Values over the minimal ones: the database is made, and this machine's S3 has no TLS."""
    file = tmp_path / "over.yaml"
    file.write_text("{postgresql: {prepare: true}, s3: {secure: false}}\n")
    return str(file)


def migration(over: str) -> Object:
    """The job's pod."""
    pod: Object = of_kind("Job", "minimal", over)["migrate"]["spec"]["template"]["spec"]
    return pod


async def test_migration_job_makes_an_empty_server_one_that_services_run_on(
    tmp_path: Path, over: str, secrets: dict[str, dict[str, str]]
) -> None:
    pod = migration(over)
    (prepare,) = pod["initContainers"]
    ended = await run_container(pod, prepare, tmp_path / "prepare", secrets, {})
    assert (ended.code, "prepared for" in ended.printed) == (0, True), ended.printed
    assert {container["name"] for container in pod["containers"]} == set(SERVED)
    ends = await asyncio.gather(
        *(run_container(pod, one, tmp_path / one["name"], secrets, {}) for one in pod["containers"])
    )
    assert [one.code for one in ends] == [0] * len(SERVED), [one.printed for one in ends]
    async with asyncio.timeout(20):
        for service, role in zip(SERVED, PREPARED, strict=True):
            url = secrets["spawnmesh-postgresql"][f"{service}-url"]
            await wait_for_schema(url, package=f"spawnmesh_{role}")


async def test_migration_of_a_database_that_is_not_there_fails_and_says_so(
    tmp_path: Path, over: str, secrets: Secrets
) -> None:
    pod = migration(over)
    container = pod["containers"][0]
    ended = await run_container(pod, container, tmp_path / "none", secrets, {})
    assert ended.code == 1
    assert "Traceback" not in ended.printed
    assert "refuses the login" in ended.printed


def test_migration_gives_up_on_a_lock_while_its_job_still_has_a_minute() -> None:
    job = of_kind("Job", "minimal")["migrate"]["spec"]
    assert LockRetry().seconds + 60 <= job["activeDeadlineSeconds"]


def here(s3: S3Endpoint) -> dict[str, str]:
    """What the rendered values say of S3, and where it is."""
    return {
        "s3.example.com": s3.endpoint,
        "https://sts.example.com": s3.sts_endpoint,
        "arn:aws:iam::123456789012:role/spawnmesh-tenant": s3.role_arn,
    }


def hook_pod(name: str, over: str) -> tuple[Object, Object]:
    pod = of_kind("Pod", "minimal", over)[name]["spec"]
    (container,) = pod["containers"]
    return pod, container


async def test_storage_check_of_helm_test_finds_tenants_kept_apart(
    tmp_path: Path, over: str, secrets: Secrets, s3: S3Endpoint
) -> None:
    ended = await run_container(*hook_pod("storage", over), tmp_path, secrets, here(s3))
    assert ended.code == 0, ended.printed
    assert ended.printed.startswith("ok ")


async def test_doctor_of_helm_test_misses_workers_and_finds_nothing_wrong_with_all_that_the_chart_makes(
    tmp_path: Path, keys: Path, migrated: dict[str, ServiceDsn], s3: S3Endpoint, secrets: Secrets, over: str
) -> None:
    workloads = list(of_kind("Deployment", "minimal"))
    places = {name: Place(tmp_path, keys, migrated, s3) for name in workloads}
    targets = {
        f"dns:///{name}.mesh.svc.cluster.local:50051": f"127.0.0.1:{place.port}"
        for name, place in places.items()
    }
    async with AsyncExitStack() as mesh:
        (port,) = free_ports(1)
        provider = {"args": ["tests.support.model_router.upstream", str(port)]}
        await mesh.enter_async_context(started(provider, {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}))
        running = await serving_together(
            mesh, places, targets, port, [name for name in workloads if not is_worker(name)]
        )
        looked_before = await run_container(*hook_pod("doctor", over), tmp_path / "before", secrets, targets)
        running += await serving_together(mesh, places, targets, port, filter(is_worker, workloads))
        ended = await run_container(*hook_pod("doctor", over), tmp_path / "doctor", secrets, targets)
        for process in running:  # All at once; each is waited for as the mesh is left.
            if process.returncode is None:
                process.terminate()
    assert (looked_before.code, "no session-worker is at work" in looked_before.printed) == (1, True)
    assert ended.code == 0, ended.printed
    for found in ("schemas", "workers", "tenant", "storage", "providers", "clock", "run"):
        assert f"ok  {found}" in ended.printed
    for name in workloads:
        assert not is_worker(name) or f"1 {name}" in ended.printed


def is_worker(name: str) -> bool:
    return name.endswith("-worker")


async def serving_together(
    mesh: AsyncExitStack,
    places: dict[str, Place],
    targets: dict[str, str],
    provider: int,
    names: Iterable[str],
) -> list[asyncio.subprocess.Process]:
    """Starts the workloads side by side, in no order as Kubernetes does, and waits until all are ready."""
    processes = {}
    for name in names:
        env = {key: targets.get(value, value) for key, value in places[name].environment(name).items()}
        if name == "model-router":
            ask_here(places[name].root / name, provider)
        processes[name] = await mesh.enter_async_context(started(container_of(name, "minimal"), env))
    await asyncio.gather(
        *(until(places[name].health_port, SERVING, process) for name, process in processes.items())
    )
    return list(processes.values())


def ask_here(router: Path, port: int) -> None:
    """Gives the rendered configuration's provider a key, and an address on this machine."""
    (router / "openai").write_text("key\n")
    file = router / "etc/spawnmesh/router.json"
    config = json.loads(file.read_text().replace("/run/secrets/providers", str(router)))
    config["providers"]["openai"]["base_url"] = f"http://127.0.0.1:{port}/v1"
    file.write_text(json.dumps(config))
