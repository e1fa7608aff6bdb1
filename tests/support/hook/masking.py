"""A text with one secret of each kind, and checks that it is masked."""

import json
from typing import Any

import psycopg
from psycopg import sql
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import run_hook_service_pb2 as run_pb
from spawnmesh_core.secret_forms import Secret, marker
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.hook.fixtures import Tenant

RUN: dict[str, Any] = {"session_id": "ses_1", "run_id": "run_1", "agent_id": "main"}

KEY = "sk-ant-api03-" + "aB3" * 20
OTHER_KEY = "ghp_" + "Zy9" * 12
BEARER = "9f8e7d6c5b4a39281706" * 2
PASSWORD = "hunter2-of-the-database"
PEM_LINES = ["MIIEvQ" + "abcDEF0123456789+/" * 3 + str(line) for line in range(4)]
PEM = "\n".join(["-----BEGIN PRIVATE KEY-----", *PEM_LINES, "-----END PRIVATE KEY-----"])
SECRETS = (KEY, BEARER, PASSWORD, *PEM_LINES)
TEXT = (
    f"key {KEY}\nAuthorization: Bearer {BEARER}\npostgresql://app:{PASSWORD}@db.example/main\n{PEM}\nthe end"
)
ARGUMENTS = json.dumps({"command": TEXT, "nested": json.dumps({"env": KEY}), "plain": "as it is"})
MARKERS = [marker(kind) for kind in Secret]


async def stored_content(database: ServiceDsn, tenant: Tenant) -> bytes:
    """Return the content of all the tenant's rows."""
    found = b""
    async with await psycopg.AsyncConnection.connect(database.app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (tenant.tenant_id,))
        query = """
            select table_name from information_schema.columns
            where column_name = 'tenant_id' and table_schema = 'hook'"""
        tables = [row[0] for row in await (await connection.execute(query)).fetchall()]
        assert {"observed_events", "deliveries", "decisions", "jobs"} <= set(tables)
        for table in tables:
            select = sql.SQL("select * from {}").format(sql.Identifier("hook", table))
            for row in await (await connection.execute(select)).fetchall():
                found += b"\n".join(one if isinstance(one, bytes) else str(one).encode() for one in row)
    return found


def assert_masked(text: str, where: str) -> None:
    for secret in SECRETS:
        assert secret not in text, where
    for one in MARKERS:
        assert one in text, where


async def call_tool(tenant: Tenant, arguments: str = ARGUMENTS) -> run_pb.DispatchBeforeToolCallResponse:
    event = events.BeforeToolCallEvent(**RUN, tool_name="exec", tool_call_id="c", arguments_json=arguments)
    answer: run_pb.DispatchBeforeToolCallResponse = await tenant.as_run(
        "DispatchBeforeToolCall", run_pb.DispatchBeforeToolCallRequest(event=event)
    )
    return answer
