"""`spawnmesh audit` on a running mesh: a run is followed by its events, and outages lose none."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh_client.wire import connect_wire
from spawnmesh_core.errors import MeshError
from spawnmesh_devstack.stack import Stack

from tests.support.command.fake_mesh import invoke
from tests.support.waiting import eventually


async def command(stack: Stack, *arguments: str) -> Any:
    return await asyncio.to_thread(invoke, "--data", str(stack.data_dir), "audit", *arguments)


async def events_of(stack: Stack, tenant: str) -> list[dict[str, Any]]:
    ended = await command(stack, "list", "--tenant", tenant, "--since", "1h", "--json")
    events: list[dict[str, Any]] = json.loads(ended.stdout)["events"]
    return events


def calls(events: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Return service, RPC and caller of each event."""
    return {
        (one["service"], one["method"].rpartition("/")[2], one["caller_kind"].removeprefix("CALLER_").lower())
        for one in events
    }


async def test_run_is_followed_by_its_events_in_every_service(stack: Stack) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    async with connect_wire(session=stack.targets["session"], token=stack.client_token(tenant)) as mesh:
        session_id = (await mesh.spawn("say it")).session_id
        run = (await mesh.wait(session_id, 60)).session.latest_run

    async def all_are_recorded() -> bool:
        return calls(await events_of(stack, tenant)) >= {
            ("session", "CreateTenant", "admin"),
            ("session", "SpawnSession", "client"),
            ("session", "FinalizeRun", "run"),
            ("transcript", "CreateTranscript", "service"),
            ("transcript", "AppendEntries", "run"),
            ("model-router", "Generate", "run"),
            ("hook", "PrepareTenant", "service"),
        }

    await eventually(all_are_recorded)
    events = await events_of(stack, tenant)
    finalized = next(one for one in events if one["method"].endswith("/FinalizeRun"))
    assert (finalized["token_id"], finalized["subject"]) == (run.run_id, run.run_id)
    assert f"session_id={session_id}" in finalized["resources"]
    log = (stack.data_dir / "logs" / "session.log").read_text()
    spawned = next(one for one in events if one["method"].endswith("/SpawnSession"))
    assert any(
        f'"token":"{spawned["token_id"]}"' in line and '"audit":true' in line for line in log.splitlines()
    )
    verified = await command(stack, "verify", "--tenant", tenant)
    assert verified.exit_code == 0, verified.stdout
    assert "BROKEN" not in verified.stdout


async def test_denied_calls_while_postgresql_is_away_are_stored_when_it_is_back(stack: Stack) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    await stack.postgres.process.kill()
    try:
        async with connect_wire(session=stack.targets["session"], token=stack.client_token(tenant)) as mesh:
            for _ in range(5):
                with pytest.raises(MeshError):
                    await mesh.tenant(tenant)  # For operators of the mesh.
    finally:
        await stack.restart_storage(stack.postgres)

    async def all_are_stored() -> bool:
        events = [one for one in await events_of(stack, tenant) if one["method"].endswith("/GetTenant")]
        return sum(int(one["call_count"]) for one in events) == 5

    await eventually(all_are_stored)
    assert (await command(stack, "verify", "--tenant", tenant)).exit_code == 0
