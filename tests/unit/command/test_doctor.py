"""`spawnmesh doctor`."""

import json
import re
from datetime import timedelta

import pytest
from spawnmesh.deployment.v1 import deployment_service_pb2 as deployment
from spawnmesh_core.clock import utc_now
from spawnmesh_devstack.keys import make_keys
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import (
    invoke,
    unset,
    write_mesh_file,
)
from tests.support.command.hospital import audience, hospital, skew

__all__ = ["audience", "hospital", "skew", "unset"]


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


async def test_a_service_that_is_down_is_named_with_what_to_do(hospital, keys):
    hospital.targets["hook"] = "127.0.0.1:1"
    write_mesh_file(hospital.data, keys, hospital.targets)

    result = await hospital.run("doctor")

    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("!!")]
    assert line.strip().split(maxsplit=2)[1:] == [
        "hook",
        "does not answer -> start it again, or correct its target;"
        " `spawnmesh up` starts it again by itself, and says so",
    ]


async def test_a_mesh_that_is_completely_down_is_to_be_started(hospital, keys):
    hospital.targets.update(dict.fromkeys(hospital.targets, "127.0.0.1:1"))

    findings = await hospital.findings(keys)

    assert {findings[name]["advice"] for name in hospital.targets} == {
        "start it with `spawnmesh up`, or correct its target"
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
