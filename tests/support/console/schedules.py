"""Schedules of a tenant of a test, as the console shows them."""

from collections.abc import Mapping, Sequence

import httpx2
from spawnmesh_client.client import Mesh
from spawnmesh_client.schedule_views import Schedule, ScheduleFiring

from tests.support.console.visitors import read

NEVER_IN_A_TEST = "0 3 29 2 *"
"""A cron line that is due on a day of a leap year."""

SCHEDULE_ACTIONS = ("change", "run", "pause", "resume", "delete")
"""The forms of a schedule, by the ends of their paths."""


def schedule_path(name: str, action: str = "") -> str:
    """Return the path of the page, or of a form of it."""
    return f"/schedules/{name}/{action}" if action else f"/schedules/{name}"


async def put_schedule(
    mesh: Mesh, name: str, task: str = "Say hello.", metadata: Mapping[str, str] | None = None
) -> Schedule:
    """Create a schedule that is not due during a test."""
    return await mesh.schedules.put(name, cron=NEVER_IN_A_TEST, time_zone="UTC", task=task, metadata=metadata)


async def history_of(mesh: Mesh, name: str) -> list[ScheduleFiring]:
    """Return the firings of the schedule, newest first."""
    return [one async for one in mesh.schedules.firings(name)]


async def press_schedule(
    client: httpx2.AsyncClient, name: str, action: str, **changes: str | Sequence[str]
) -> httpx2.Response:
    """Send the form of the schedule's page, with other values for some fields."""
    form = (await read(client, schedule_path(name))).form(schedule_path(name, action))
    return await client.post(form.action, data={**form.fields, **changes})
