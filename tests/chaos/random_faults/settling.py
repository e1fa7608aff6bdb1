"""Wait until the mesh has come to rest by itself."""

import asyncio
import time

from tests.chaos.random_faults.checks import objects, terminal_states
from tests.chaos.random_faults.facts import Facts, load_objects, load_tables
from tests.chaos.random_faults.field import Field

_LOOK_AGAIN_SECONDS = 1.0


async def settle(field: Field, facts: Facts, tenants: list[str], within_seconds: float) -> float:
    """Wait until all runs have ended, every queue is empty, and the objects agree with the rows.

    Load the tables and objects into `facts`, with what was not at rest in time. Return the seconds
    that it took.
    """
    began = time.monotonic()

    async def is_settled() -> bool:
        facts.tables = await load_tables(field.stack.superuser_dsn)
        facts.objects = await load_objects(field, tenants)
        facts.workspaces = left_in(field)
        facts.unsettled = unsettled(facts)
        return not facts.unsettled and not objects.check(facts) and not facts.workspaces

    while not await is_settled() and time.monotonic() < began + within_seconds:
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)  # The checks report what is left.
    return time.monotonic() - began


def unsettled(facts: Facts) -> list[str]:
    """Return what is still under way.

    A message to a session that is ACTIVE has, or will have, a run that reads it. One that came as
    its session ended stays unread, and one whose run was interrupted waits for the next message.
    """
    active = {row["session_id"] for row in facts.rows("sessions") if row["state"] == "ACTIVE"}
    active -= {row["session_id"] for row in facts.rows("runs") if row["state"] == "INTERRUPTED"}
    return [
        *(
            f"{row['session_id']} is {row['state']}"
            for row in facts.rows("sessions")
            if row["state"] == "PROVISIONING"
        ),
        *(
            f"{row['run_id']} is {row['state']}: {row['delay_reason']} {row['delay_message']}"
            for row in facts.rows("runs")
            if row["state"] not in terminal_states.TERMINAL
        ),
        *(f"{row['run_id']} waits in the queue" for row in facts.rows("queue")),
        *(
            f"{row['key']} of {row['session_id']} is not read"
            for row in facts.rows("messages")
            if row["acknowledge_time"] is None and row["session_id"] in active
        ),
        *(
            f"delivery {row['key']} waits: {row['last_error']}"
            for row in facts.rows("outbox")
            if row["dead_time"] is None and not row["is_held"]
        ),
        *(
            f"job {row['kind']} {row['key']} waits, or is worked on: {row['last_error']}"
            for row in facts.rows("jobs")
            if row["dead_time"] is None
        ),
    ]


def left_in(field: Field) -> list[str]:
    """Return the names in the runners' workspaces."""
    root = field.workspace_root
    return sorted(path.name for path in root.iterdir()) if root.exists() else []
