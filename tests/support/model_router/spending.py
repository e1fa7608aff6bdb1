"""The spending of tenants, as ListSpend says it and as the database has it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import spend_pb2
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import scope_statement
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.fixtures import Router, World
from tests.support.waiting import eventually

BY_DAY, BY_AGENT, BY_MODEL = (
    spend_pb2.SPEND_DIMENSION_DAY,
    spend_pb2.SPEND_DIMENSION_AGENT,
    spend_pb2.SPEND_DIMENSION_MODEL,
)
Row = tuple[str, str, int, int]
"""An agent, a model without its provider, the number of its answers, and their cost."""


def as_agent(router: Router, agent_id: str) -> Router:
    """Return the router as a run of the agent calls it."""
    minter = TokenMinter("session", router.keys / "session.pem")
    session_id, run_id = new_id(IdKind.SESSION), new_id(IdKind.RUN)
    return replace(
        router, token=minter.run_token(router.tenant, session_id, run_id, 1, 600, agent_id=agent_id)
    )


def reasoning_tokens(router: Router) -> int:
    """Return the tokens of reasoning in the span of the only call of a model; 0 if it names none."""
    [span] = [one for one in router.spans.get_finished_spans() if one.name.startswith("chat ")]
    found = (span.attributes or {}).get("gen_ai.usage.reasoning.output_tokens", 0)
    assert isinstance(found, int)
    return found


def today() -> date:
    return datetime.now(UTC).date()


async def list_spend(router: Router, **fields: Any) -> pb.ListSpendResponse:
    """Return the first page, which has all rows of a test. Raises MeshError."""
    fields.setdefault("page_size", 1000)
    response: pb.ListSpendResponse = await router.call("ListSpend", pb.ListSpendRequest(**fields))
    return response


async def spent(router: Router, call_count: int, **fields: Any) -> list[Row]:
    """Return the rows once they have so many calls: a call is stored about a second after its end."""

    async def complete() -> list[Row]:
        rows = (await list_spend(router, **fields)).rows
        if sum(row.call_count for row in rows) < call_count:
            return []
        return [(row.agent_id, row.model.partition("/")[2], row.call_count, row.cost_micros) for row in rows]

    return await eventually(complete)


async def put_spend(
    world: World, tenant_id: str, days_ago: int, *names: tuple[str, str], cost_micros: int = 1
) -> None:
    """Store a row of a past day for each of these agents and models."""
    day = today() - timedelta(days=days_ago)
    rows = [(tenant_id, day, agent, model, cost_micros) for agent, model in names]
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute(scope_statement(tenant_id).encode())
        async with connection.cursor() as cursor:
            await cursor.executemany(
                "insert into spend_days values (%s, %s, %s, %s, 1, 1, 1, 0, 0, %s)", rows
            )


async def stored_rows(world: World, tenant_id: str) -> Sequence[tuple[date, str, str, int]]:
    """Return the day, the agent, the model and the number of calls of each row."""
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute(scope_statement(tenant_id).encode())
        query = "select day, agent_id, model, call_count from spend_days order by 1, 2, 3"
        return await (await connection.execute(query)).fetchall()
