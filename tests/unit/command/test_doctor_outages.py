"""`spawnmesh doctor` while a database is lost, and on several replicas."""

import json
import re
from functools import partial

from spawnmesh.deployment.v1 import deployment_service_pb2 as deployment
from spawnmesh.deployment.v1.deployment_service_pb2_grpc import (
    add_DeploymentServiceServicer_to_server,
)
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceServicer, add_HookServiceServicer_to_server
from spawnmesh_core.errors import unavailable
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import (
    served,
    unset,
)
from tests.support.command.hospital import (
    FakeDeployment,
    audience,
    dependency,
    hospital,
    not_serving,
    skew,
    sound,
)

__all__ = ["audience", "hospital", "skew", "unset"]


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
        "serves, but no answer comes from 1 of 3 replicas",
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
