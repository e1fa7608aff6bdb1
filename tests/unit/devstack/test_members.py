"""Each process of the mesh gets the environment that it needs, and no secrets of other processes."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from spawnmesh_devstack import members
from spawnmesh_devstack.members import SERVICES, Surroundings
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_devstack.trace_server import TraceAccess

EXTRA = {
    "ANTHROPIC_API_KEY": "sk-secret",
    "SESSION_LEASE_TTL_SECONDS": "2",
    "RUNNER_MAX_RUNS": "3",
    "OTEL_BSP_SCHEDULE_DELAY": "7000",
}


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    databases = {members.snake(name): ServiceDsn(f"app-of-{name}", f"owner-of-{name}") for name in SERVICES}
    endpoint = S3Endpoint("127.0.0.1:1", "access", "s3-secret", "http://127.0.0.1:1", "arn", "us-east-1")
    for name in ("session", "runner"):
        (tmp_path / f"{name}.pem").touch()
    return Surroundings(
        keys=tmp_path,
        otlp_endpoint="http://127.0.0.1:2",
        trace_access=TraceAccess(11, tmp_path / "trace-reader.headers"),
        span_journal_dir=tmp_path / "spans",
        databases=databases,
        targets={name: f"127.0.0.1:{port}" for port, name in enumerate(SERVICES, 3)},
        s3=SimpleNamespace(endpoint=endpoint),
        router_config_file=tmp_path / "router.json",
        workspace_root=tmp_path / "workspaces",
        extra=EXTRA,
    )


def every_member(around: Surroundings) -> dict[str, members.Member]:
    services = [members.service_member(name, 9, around) for name in SERVICES]
    workers = [
        members.worker_member(around),
        members.blob_worker_member(around),
        members.hook_worker_member(around),
    ]
    found = [*services, *workers, members.runner_member("runner", 9, around)]
    return {member.name: member for member in found}


def holders(around: Surroundings, value: str) -> set[str]:
    return {name for name, member in every_member(around).items() if value in member.env.values()}


def test_secrets_go_to_the_one_service_that_needs_them(around):
    assert holders(around, "sk-secret") == {"model-router"}
    assert holders(around, "s3-secret") == {"attachment-blob", "attachment-blob-worker"}
    assert holders(around, "app-of-transcript") == {"transcript"}
    assert holders(around, "app-of-session") == {"session", "session-worker"}
    assert holders(around, "owner-of-session") == set()
    assert holders(around, str(around.keys / "runner.pem")) == {"runner"}


def test_setting_goes_to_the_service_whose_prefix_it_has(around):
    assert holders(around, "2") == {"session", "session-worker"}
    assert holders(around, "3") == {"runner"}


def test_setting_of_telemetry_goes_to_all(around):
    assert holders(around, "7000") == set(every_member(around))


def test_environment_of_the_caller_stays_with_the_caller(around, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "callers-own")
    monkeypatch.setenv("HOOK_DATABASE_URL", "callers-own")
    monkeypatch.setenv("PATH", "/callers/path")

    assert holders(around, "callers-own") == set()
    assert holders(around, "/callers/path") == set(every_member(around))


def test_targets_are_those_of_the_peers_a_service_calls(around):
    session = every_member(around)["session"].env
    targets = {name: value for name, value in session.items() if name.endswith("_TARGET")}

    assert targets == {
        "SESSION_ATTACHMENT_BLOB_TARGET": around.targets["attachment-blob"],
        "SESSION_TRANSCRIPT_TARGET": around.targets["transcript"],
        "SESSION_HOOK_TARGET": around.targets["hook"],
        "SESSION_MODEL_ROUTER_TARGET": around.targets["model-router"],
    }


def test_worker_listens_nowhere(around):
    assert "SESSION_LISTEN" not in members.worker_member(around).env
    assert members.service_member("session", 9, around).env["SESSION_LISTEN"] == "127.0.0.1:9"
