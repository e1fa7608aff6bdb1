"""`spawnmesh doctor` on a mesh whose parts are killed, and the restart of these parts."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh_client.wire import connect_wire
from spawnmesh_devstack.members import SERVICES
from spawnmesh_devstack.restarts import restart_ended
from spawnmesh_devstack.stack import Stack

from tests.support.command.fake_mesh import invoke
from tests.support.waiting import eventually

# Each of them has a database.
POSTGRESQL = {f"{service}: postgresql" for service in SERVICES}
KILLED = ("postgres", "s3", "model-router")


async def findings(stack: Stack, tenant: str) -> dict[str, dict[str, Any]]:
    """Run the command and return its findings by name."""
    ended = await asyncio.to_thread(
        invoke, "--data", str(stack.data_dir), "--tenant", tenant, "doctor", "--json"
    )
    answer = json.loads(ended.stdout)
    assert answer["ok"] is (ended.exit_code == 0)
    return {finding["name"]: finding for finding in answer["findings"]}


def named(found: dict[str, dict[str, Any]], ok: bool | None) -> set[str]:
    return {name for name, finding in found.items() if finding["ok"] is ok}


@pytest.mark.timeout(420)
async def test_doctor_names_what_is_down_until_it_is_started_again(stack: Stack) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    await eventually(lambda: _is_sound(stack, tenant))
    try:
        await stack.postgres.process.kill()
        await stack.s3.processes[-1].kill()
        await stack.processes["model-router"].kill()
        found = await findings(stack, tenant)
    finally:
        lines = await _brought_back(stack)

    of_router = {"session: model-router", "transcript: model-router"}
    # The dependencies of the killed router are not known.
    of_database = POSTGRESQL - {"model-router: postgresql"}
    assert named(found, False) == {
        *("model-router", "attachment-blob: s3", "attachment-blob: sts"),
        *of_router,
        *of_database,
    }
    assert {found[name]["advice"] for name in of_router} == {"see model-router above"}
    assert all("database server" in found[name]["advice"] for name in of_database)
    assert all(": no connection can be made" in found[name]["detail"] for name in of_database)
    assert named(found, None) == {"schemas", "workers", "token"}
    assert "PostgreSQL does not answer" in found["token"]["detail"]

    killed = {f"{name} was killed by SIGKILL" for name in KILLED}
    assert killed <= {line.partition(";")[0] for line in lines}
    assert all(f"its log is {stack.data_dir}/logs/" in line for line in lines if "was killed" in line)
    await eventually(lambda: _is_sound(stack, tenant))
    written = json.loads((stack.data_dir / "mesh.json").read_text())
    assert written["pids"] == stack.pids


async def _brought_back(stack: Stack) -> list[str]:
    """Have the killed processes started again, and return what was reported, also of others."""
    lines: list[str] = []
    wanted = {f"{name} is back" for name in KILLED}
    async with asyncio.TaskGroup() as group:
        restarting = group.create_task(restart_ended(stack, lines.append))
        try:
            await eventually(lambda: wanted <= set(lines), within_seconds=180)
        except AssertionError:
            raise AssertionError(f"not all are back: {lines}") from None
        restarting.cancel()
    return lines


async def _is_sound(stack: Stack, tenant: str) -> bool:
    found = await findings(stack, tenant)
    return named(found, True) == found.keys() and found.keys() >= POSTGRESQL
