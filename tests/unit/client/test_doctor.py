"""`spawnmesh doctor`."""

import json
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import (
    AttachmentBlobServiceServicer,
    add_AttachmentBlobServiceServicer_to_server,
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
from spawnmesh_client.cli.app import build_app
from spawnmesh_core.clock import utc_now
from spawnmesh_devstack.keys import make_keys

from tests.unit.client.fake_mesh import (
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


class Hospital(FakeMesh):
    """All five services, each of which a test can take away or exchange in `targets`."""

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
async def hospital(keys, tmp_path, skew):
    sessions, tenants = FakeSessions(), FakeTenants()
    servers = {
        "session": add_sessions(sessions, tenants),
        "transcript": lambda server: add_TranscriptServiceServicer_to_server(TranscriptServiceServicer(), server),
        "attachment-blob": lambda server: add_AttachmentBlobServiceServicer_to_server(
            AttachmentBlobServiceServicer(), server
        ),
        "model-router": lambda server: add_ModelRouterServiceServicer_to_server(ModelRouterServiceServicer(), server),
        "hook": lambda server: add_HookServiceServicer_to_server(HookServiceServicer(), server),
    }
    async with AsyncExitStack() as stack:
        targets = {}
        for name, add in servers.items():
            targets[name] = await stack.enter_async_context(served(name, keys, add, clock=lambda: utc_now() + skew))
        yield Hospital(tmp_path, sessions, tenants, FakeTranscript(), targets)


async def test_a_sound_mesh_is_found_to_be_sound(hospital, keys):
    findings = await hospital.findings(keys)

    assert {name: finding["ok"] for name, finding in findings.items()} == dict.fromkeys(
        ("versions", "session", "transcript", "attachment-blob", "model-router", "hook", "schemas", "token", "clock"),
        True,
    )


async def test_a_service_that_is_down_is_named_with_what_to_do(hospital, keys):
    hospital.targets["hook"] = "127.0.0.1:1"
    write_mesh_file(hospital.data, keys, hospital.targets)

    result = await hospital.run("doctor")

    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("!!")]
    assert line.strip().split(maxsplit=2)[1:] == [
        "hook",
        "does not answer -> start it with `make up`, or correct its target",
    ]


async def test_a_schema_is_not_vouched_for_where_its_service_is_down(hospital, keys):
    hospital.targets["hook"] = "127.0.0.1:1"

    finding = (await hospital.findings(keys))["schemas"]

    assert (finding["ok"], finding["detail"]) == (None, "not known of hook")
    assert "schema_not_ready" in finding["advice"]


async def test_a_target_that_is_another_service_is_found_out(hospital, keys):
    hospital.targets["transcript"] = hospital.targets["hook"]

    findings = await hospital.findings(keys)

    assert (findings["transcript"]["ok"], findings["transcript"]["advice"]) == (False, "correct its target")
    assert findings["schemas"]["detail"].startswith("4 of 5 services"), "what it runs on is not known"


async def test_schemas_are_not_vouched_for_where_nobody_is_who_he_should_be(hospital, keys):
    hospital.targets = {"session": hospital.targets["hook"]}

    finding = (await hospital.findings(keys))["schemas"]

    assert (finding["ok"], finding["detail"]) == (None, "not known of session")


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


@pytest.mark.parametrize(("skew", "told"), [(timedelta(seconds=60), "ahead of"), (timedelta(seconds=-60), "behind")])
async def test_clocks_that_differ_are_found_out(hospital, keys, skew, told):
    finding = (await hospital.findings(keys))["clock"]

    assert (finding["ok"], finding["detail"]) == (False, f"the mesh is more than 10 s {told} this machine")


def test_a_dead_mesh_is_told_line_by_line(tmp_path, keys):
    write_mesh_file(tmp_path, keys, {"session": "127.0.0.1:1"})

    result = invoke(build_app(), "--data", str(tmp_path), "doctor")

    assert result.exit_code == 1
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["ok", "versions"],
        ["!!", "session"],
        *(["--", name] for name in ("transcript", "attachment-blob", "model-router", "hook", "schemas")),
    ]
