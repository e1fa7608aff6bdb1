"""The logs of all services can be searched by an id."""

import json
from typing import Any
from uuid import uuid4

from spawnmesh_client.wire import connect_wire
from spawnmesh_devstack.stack import Stack

from tests.support.waiting import eventually

CALLED_BY_RUNS = ("session", "transcript", "model-router")


def events(stack: Stack, service: str, **wanted: str) -> list[dict[str, Any]]:
    """Return the events in the log of the service that have these values."""
    lines = (stack.data_dir / "logs" / f"{service}.log").read_text().splitlines()
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    return [event for event in logged if wanted.items() <= event.items()]


async def test_events_of_a_run_are_found_by_its_id_in_every_service_it_called(stack: Stack) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    async with connect_wire(session=stack.targets["session"], token=stack.client_token(tenant)) as mesh:
        session_id = (await mesh.spawn("say it")).session_id
        run = (await mesh.wait(session_id, 60)).session.latest_run

    async def logged_by_all() -> bool:
        ids = {"tenant": tenant, "session": session_id, "run": run.run_id}
        return all(events(stack, service, **ids) for service in CALLED_BY_RUNS)

    await eventually(logged_by_all)
