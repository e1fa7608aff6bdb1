"""`spawnmesh doctor`."""

import json
import re
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import pytest
from opentelemetry.trace import NoOpTracer
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import (
    AttachmentBlobServiceServicer,
    add_AttachmentBlobServiceServicer_to_server,
)
from spawnmesh.deployment.v1 import deployment_service_pb2 as deployment
from spawnmesh.deployment.v1.deployment_service_pb2_grpc import (
    DeploymentServiceServicer,
    add_DeploymentServiceServicer_to_server,
)
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceServicer, add_HookServiceServicer_to_server
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import (
    ModelRouterServiceServicer,
    add_ModelRouterServiceServicer_to_server,
)
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import (
    TranscriptServiceServicer,
    add_TranscriptServiceServicer_to_server,
)
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import unavailable
from spawnmesh_devstack.keys import make_keys
from spawnmesh_runtime.health import Health
from spawnmesh_runtime.jwks import JwksFile
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import AUDIENCE, TokenMinter, TokenVerifier
from structlog.testing import capture_logs

from tests.support.client.fake_mesh import (
    FakeMesh,
    FakeSessions,
    FakeTenants,
    FakeTranscript,
    add_sessions,
    invoke,
    served,
    unset,
    write_mesh_file,
)

__all__ = ["unset"]


@dataclass
class FakeDeployment(DeploymentServiceServicer):
    """Describe the service with the given replica."""

    replica: deployment.Replica

    async def DescribeReplica(self, request, context):
        return deployment.DescribeReplicaResponse(replica=self.replica)


def sound(service):
    """Return a healthy replica; session's worker runs in two processes."""
    schema = deployment.Schema(
        state=deployment.SCHEMA_STATE_CURRENT,
        known_migration_id="0002_more",
        applied_migration_id="0002_more",
    )
    workers = [deployment.Worker(name="session-worker", process_count=2)] if service == "session" else []
    return deployment.Replica(
        service=service,
        version="0.1.0",
        schema=schema,
        workers=workers,
        host_name=f"{service}-0",
        dependencies=[dependency("postgresql")],
    )


def dependency(name, fault=None, *, since=timedelta(minutes=3), is_up=None):
    """Return a dependency that is up, or down with the fault; with both, it was down before."""
    is_up = fault is None if is_up is None else is_up
    one = deployment.Dependency(
        name=name,
        state=deployment.DEPENDENCY_STATE_UP if is_up else deployment.DEPENDENCY_STATE_DOWN,
        last_fault=0 if fault is None else fault,
    )
    one.since_time.FromDatetime(utc_now() - since)
    return one


@asynccontextmanager
async def not_serving(service, keys, servicer):
    """Serve only the description of a replica that does not serve."""
    settings = ProcessSettings(log_level="error", jwks_file=keys / "jwks.json")
    with capture_logs():
        process = Process(service, settings, None, TokenVerifier(JwksFile(keys / "jwks.json")), NoOpTracer())
        server = build_server(process)
        add_DeploymentServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start_not_ready()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)


@dataclass
class Hospital(FakeMesh):
    """All five services.

    A test can remove or exchange them in `targets`, and change their `replicas`.
    """

    replicas: dict[str, deployment.Replica] = field(default_factory=dict)
    health: dict[str, Health] = field(default_factory=dict)

    async def findings(self, keys):
        write_mesh_file(self.data, keys, self.targets)
        result = await self.run("doctor", "--json")
        answer = json.loads(result.stdout)
        assert answer["ok"] == (result.exit_code == 0)
        return {finding.pop("name"): finding for finding in answer["findings"]}


@pytest.fixture
def skew():
    return timedelta()


@pytest.fixture
def audience():
    return AUDIENCE


@pytest.fixture
async def hospital(keys, tmp_path, skew, audience):
    sessions, tenants = FakeSessions(), FakeTenants()
    servers = {
        "session": add_sessions(sessions, tenants),
        "transcript": lambda server: add_TranscriptServiceServicer_to_server(
            TranscriptServiceServicer(), server
        ),
        "attachment-blob": lambda server: add_AttachmentBlobServiceServicer_to_server(
            AttachmentBlobServiceServicer(), server
        ),
        "model-router": lambda server: add_ModelRouterServiceServicer_to_server(
            ModelRouterServiceServicer(), server
        ),
        "hook": lambda server: add_HookServiceServicer_to_server(HookServiceServicer(), server),
    }
    async with AsyncExitStack() as stack:
        targets, replicas, healths = {}, {}, {name: Health() for name in servers}
        for name, add in servers.items():
            replicas[name] = sound(name)
            about = partial(add_DeploymentServiceServicer_to_server, FakeDeployment(replicas[name]))
            serving = served(
                name,
                keys,
                add,
                about,
                audience=audience,
                clock=lambda: utc_now() + skew,
                health=healths[name],
            )
            targets[name] = await stack.enter_async_context(serving)
        yield Hospital(tmp_path, sessions, tenants, FakeTranscript(), targets, replicas, healths)


async def test_a_sound_mesh_is_found_to_be_sound(hospital, keys):
    findings = await hospital.findings(keys)

    assert {name: finding["ok"] for name, finding in findings.items()} == dict.fromkeys(
        (
            *("versions", "session", "transcript", "attachment-blob", "model-router", "hook"),
            *(f"{service}: postgresql" for service in hospital.targets),
            *("schemas", "workers", "token", "clock"),
        ),
        True,
    )
    assert findings["hook: postgresql"]["detail"] == "up for 3 min"
    assert "session 0002_more" in findings["schemas"]["detail"].split(", ")
    assert findings["workers"]["detail"] == "2 session-worker"


@pytest.mark.parametrize("audience", ["other"])
async def test_a_mesh_whose_tokens_are_for_another_audience_is_looked_at_with_such(
    hospital, keys, audience, monkeypatch
):
    monkeypatch.setenv("SPAWNMESH_TOKEN_AUDIENCE", audience)

    findings = await hospital.findings(keys)

    assert [findings[name]["ok"] for name in ("schemas", "workers", "token", "clock")] == [True] * 4
    deeper = json.loads((await hospital.run("doctor", "--deep", "--json")).stdout)["findings"]
    assert [finding["ok"] for finding in deeper if finding["name"] == "tenant"] == [True]


async def test_a_schema_ahead_of_its_service_is_reported_and_not_wrong(hospital, keys):
    schema = hospital.replicas["hook"].schema
    schema.state, schema.applied_migration_id = deployment.SCHEMA_STATE_AHEAD, "0003_newer"

    finding = (await hospital.findings(keys))["schemas"]

    assert finding["ok"] is True
    assert "hook 0003_newer (release 0.1.0 is older and knows 0002_more)" in finding["detail"]


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        (deployment.SCHEMA_STATE_BEHIND, "run the migrations"),
        (deployment.SCHEMA_STATE_UNFIT, "upgrade to the release"),
    ],
)
async def test_an_unusable_schema_is_reported_with_advice(hospital, keys, state, advice):
    schema = hospital.replicas["hook"].schema
    schema.state, schema.objection = state, "it is not what it should be"

    finding = (await hospital.findings(keys))["schemas"]

    assert (finding["ok"], finding["detail"]) == (False, "hook: it is not what it should be")
    assert finding["advice"].startswith(advice)


@pytest.mark.parametrize(
    ("ago", "told"),
    [
        (timedelta(seconds=40), r"one was seen last \d+ s ago"),
        (timedelta(minutes=3), r"one was seen last 3 min ago"),
        (timedelta(hours=5), r"one was seen last 5 h ago"),
        (None, "and none was seen that has not stopped in good order"),
    ],
)
async def test_a_worker_that_is_not_there_is_named(hospital, keys, ago, told):
    (worker,) = hospital.replicas["session"].workers
    worker.process_count = 0
    if ago is not None:
        worker.last_seen_time.FromDatetime(utc_now() - ago)

    finding = (await hospital.findings(keys))["workers"]

    assert finding["ok"] is False
    assert re.fullmatch(f"no session-worker is at work, {told}", finding["detail"])
    assert finding["advice"]


async def test_without_a_signing_key_schemas_are_vouched_for_by_who_serves(hospital, keys, monkeypatch):
    for name, target in hospital.targets.items():
        monkeypatch.setenv(f"SPAWNMESH_{name.replace('-', '_').upper()}_TARGET", target)
    monkeypatch.setenv(
        "SPAWNMESH_TOKEN", TokenMinter("client", keys / "client.pem").client_token("demo", "me", 60.0)
    )

    result = await hospital.run("doctor", "--json")

    findings = {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert findings["schemas"]["ok"] is True
    assert findings["schemas"]["detail"].startswith("5 of 5 services run on one that they know")
    assert "workers" not in findings


async def test_a_lost_database_is_named_once_with_advice_and_neither_token_nor_schema_is_blamed(
    hospital, keys
):
    for replica in hospital.replicas.values():
        replica.dependencies[0].CopyFrom(dependency("postgresql", deployment.DEPENDENCY_FAULT_UNREACHABLE))
        replica.schema.state, replica.schema.objection = deployment.SCHEMA_STATE_UNKNOWN, "it is away"
        del replica.workers[:]
    hospital.tenants.refusal = unavailable("PostgreSQL")

    findings = await hospital.findings(keys)

    assert {name for name, finding in findings.items() if finding["ok"] is False} == {
        f"{service}: postgresql" for service in hospital.targets
    }
    assert findings["hook: postgresql"]["detail"] == "down for 3 min: no connection can be made"
    assert [findings[name]["ok"] for name in ("schemas", "workers", "token", "clock")] == [
        None,
        None,
        None,
        True,
    ]
    assert findings["token"]["detail"] == "not checked: PostgreSQL does not answer; call again later"
    text = (await hospital.run("doctor", "--deep")).stdout
    assert text.count("check that the database server runs") == 1
    assert "migration" not in text
    assert "spawnmesh token" not in text
    assert re.search(r"tenant +demo cannot be made ready.*-> see what is down above", text.replace("\n", " "))


async def test_a_replica_that_waits_for_its_schema_says_so(hospital, keys):
    schema = hospital.replicas["hook"].schema
    schema.state, schema.objection = deployment.SCHEMA_STATE_BEHIND, "the schema is older: it lacks 0002_more"
    async with not_serving("hook", keys, FakeDeployment(hospital.replicas["hook"])) as target:
        hospital.targets["hook"] = target
        findings = await hospital.findings(keys)

    assert findings["hook"]["detail"].endswith("does not serve now: the schema is older: it lacks 0002_more")
    assert findings["schemas"]["advice"].startswith("run the migrations")


async def test_each_replica_of_a_target_is_asked(hospital, keys):
    other = sound("hook")
    other.host_name = "hook-1"
    other.dependencies[0].CopyFrom(dependency("postgresql", deployment.DEPENDENCY_FAULT_TIMEOUT))
    about = partial(add_DeploymentServiceServicer_to_server, FakeDeployment(other))
    async with served(
        "hook", keys, partial(add_HookServiceServicer_to_server, HookServiceServicer()), about
    ) as target:
        hospital.targets["hook"] = f"ipv4:{hospital.targets['hook']},{target},127.0.0.1:1"
        findings = await hospital.findings(keys)

    assert findings["hook: postgresql"]["detail"] == (
        "down on 1 of 2 replicas (hook-1) for 3 min: it does not answer in time"
    )
    assert (findings["hook"]["ok"], findings["hook"]["detail"]) == (
        False,
        "serves, but 1 of 3 replicas do not answer",
    )


async def test_without_a_signing_key_dependencies_are_reported_by_their_state(hospital, keys, monkeypatch):
    for name, target in hospital.targets.items():
        monkeypatch.setenv(f"SPAWNMESH_{name.replace('-', '_').upper()}_TARGET", target)
    token = TokenMinter("client", keys / "client.pem").client_token("demo", "me", 60.0)
    monkeypatch.setenv("SPAWNMESH_TOKEN", token)
    await hospital.health["attachment-blob"].dependency("s3", is_up=False)
    await hospital.health["hook"].dependency("postgresql", is_up=True)

    findings = json.loads((await hospital.run("doctor", "--json")).stdout)["findings"]

    told = {
        finding["name"]: (finding["ok"], finding["detail"]) for finding in findings if ":" in finding["name"]
    }
    assert told == {"attachment-blob: s3": (False, "down"), "hook: postgresql": (True, "up")}


async def test_a_service_that_is_down_is_named_with_what_to_do(hospital, keys):
    hospital.targets["hook"] = "127.0.0.1:1"
    write_mesh_file(hospital.data, keys, hospital.targets)

    result = await hospital.run("doctor")

    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("!!")]
    assert line.strip().split(maxsplit=2)[1:] == [
        "hook",
        "does not answer -> start it again, or correct its target;"
        " `make up` starts it again by itself, and says so",
    ]


async def test_a_mesh_that_is_completely_down_is_to_be_started(hospital, keys):
    hospital.targets.update(dict.fromkeys(hospital.targets, "127.0.0.1:1"))

    findings = await hospital.findings(keys)

    assert {findings[name]["advice"] for name in hospital.targets} == {
        "start it with `make up`, or correct its target"
    }


async def test_a_schema_is_not_vouched_for_where_its_service_is_down(hospital, keys):
    hospital.targets["hook"] = "127.0.0.1:1"

    finding = (await hospital.findings(keys))["schemas"]

    assert (finding["ok"], finding["advice"]) == (None, "")
    assert finding["detail"].endswith("; not known of hook")


async def test_a_target_that_is_another_service_is_found_out(hospital, keys):
    hospital.targets["transcript"] = hospital.targets["hook"]

    findings = await hospital.findings(keys)

    assert (findings["transcript"]["ok"], findings["transcript"]["advice"]) == (False, "correct its target")
    assert findings["schemas"]["ok"] is None
    assert findings["schemas"]["detail"].endswith("; not reported by transcript (NOT_FOUND)")


async def test_schemas_are_not_vouched_for_where_nobody_is_who_he_should_be(hospital, keys):
    hospital.targets = {"session": hospital.targets["hook"]}

    finding = (await hospital.findings(keys))["schemas"]

    assert (finding["ok"], finding["detail"]) == (None, "not reported by session (NOT_FOUND)")


async def test_a_service_that_was_not_named_is_not_counted_as_wrong(hospital, keys):
    del hospital.targets["model-router"]

    finding = (await hospital.findings(keys))["model-router"]

    assert finding["ok"] is None
    assert "SPAWNMESH_MODEL_ROUTER_TARGET" in finding["detail"]


async def test_a_tenant_that_was_never_created_is_found_out(hospital, keys):
    hospital.tenants.agents = []

    finding = (await hospital.findings(keys))["token"]

    assert (finding["ok"], finding["advice"]) == (False, "spawnmesh tenant create demo")


async def test_keys_of_another_mesh_are_found_out(hospital, tmp_path):
    make_keys(tmp_path / "other")

    findings = await hospital.findings(tmp_path / "other")

    assert "TOKEN_INVALID" in findings["token"]["detail"]
    assert findings["clock"]["ok"] is None
    assert findings["schemas"]["ok"] is None
    assert "session (TOKEN_INVALID)" in findings["schemas"]["detail"]
    assert findings["workers"]["ok"] is None


@pytest.mark.parametrize(
    ("skew", "told"), [(timedelta(seconds=60), "ahead of"), (timedelta(seconds=-60), "behind")]
)
async def test_clocks_that_differ_are_found_out(hospital, keys, skew, told):
    finding = (await hospital.findings(keys))["clock"]

    assert (finding["ok"], finding["detail"]) == (False, f"the mesh is more than 10 s {told} this machine")


def test_a_dead_mesh_is_reported_line_by_line(tmp_path, keys):
    write_mesh_file(tmp_path, keys, {"session": "127.0.0.1:1"})

    result = invoke("--data", str(tmp_path), "doctor")

    assert result.exit_code == 1
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["ok", "versions"],
        ["!!", "session"],
        *(
            ["--", name]
            for name in ("transcript", "attachment-blob", "model-router", "hook", "schemas", "workers")
        ),
    ]
