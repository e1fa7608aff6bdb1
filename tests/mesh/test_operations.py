"""An operation outlives the worker that carries it, and is followed through the gateway."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from spawnmesh.session.v1 import tenant_pb2
from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh_client.recounts import recount_transcript
from spawnmesh_client.wire import connect_wire
from spawnmesh_devstack.stack import Stack

from tests.support.commands import Commands
from tests.support.mesh.new_tenant import new_tenant
from tests.support.mesh.plain_http import request
from tests.support.waiting import eventually

VOCABULARY = "settings.transcripts.token_vocabulary"
_HELD = "select from transcript.transcripts where tenant_id = %s for update"
_BLOCKED = "select count(*) > 0 from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
_DUE = "update transcript.jobs set due_time = now() where tenant_id = %s and kind = 'operation'"
_DUE_AT_SESSION = "update session.jobs set due_time = now() where tenant_id = %s and kind = 'operation'"
_TRIES = "select step_count, total_count from transcript.operations where tenant_id = %s"


@asynccontextmanager
async def held_transcripts(stack: Stack, tenant_id: str) -> AsyncIterator[int]:
    """Lock the transcripts of the tenant. Yields the process id of the connection."""
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn) as holder:
        await holder.execute(_HELD, (tenant_id,))
        yield holder.info.backend_pid
        await holder.rollback()


async def test_operation_outlives_its_killed_worker(stack: Stack) -> None:
    tenant_id = await new_tenant(stack)
    targets = {name: stack.targets[name] for name in ("session", "transcript")}
    async with connect_wire(**targets, token=stack.client_token(tenant_id)) as client:
        session = await client.spawn("Say hello.", wait_seconds=60)
        async with connect_wire(session=targets["session"], token=stack.admin_token()) as operator:
            settings = tenant_pb2.TenantSettings()
            settings.transcripts.token_vocabulary = "cl100k_base"
            await operator.update_tenant(tenant_id, [VOCABULARY], settings=settings)
        peer = client.service("transcript")
        async with (
            await psycopg.AsyncConnection.connect(stack.superuser_dsn, autocommit=True) as database,
            asyncio.TaskGroup() as tasks,
        ):

            async def is_blocked() -> bool:
                row = await (await database.execute(_BLOCKED, (holder,))).fetchone()
                return row is not None and bool(row[0])

            async with held_transcripts(stack, tenant_id) as holder:
                recounting = tasks.create_task(recount_transcript(peer, session.session_id, dry_run=False))
                await eventually(is_blocked)  # A step is writing.
                await stack.processes["transcript-worker"].kill()
            await database.execute(_DUE, (tenant_id,))  # The claim would end after 30 s.
            await stack.restart("transcript-worker")
            counted = await recounting
            row = await (await database.execute(_TRIES, (tenant_id,))).fetchone()
    assert row == (1, counted.examined_entry_count)
    assert counted.examined_entry_count > 2
    assert counted.token_vocabulary == "cl100k_base"


async def test_deletion_of_a_tenant_outlives_the_killed_service_and_its_worker(
    stack: Stack, gateway: str, commands: Commands
) -> None:
    tenant_id = await new_tenant(stack)
    targets = {name: stack.targets[name] for name in ("session", "transcript")}
    async with connect_wire(**targets, token=stack.client_token(tenant_id)) as client:
        await client.spawn("Say hello.", wait_seconds=60)
    token = stack.admin_token()
    options = ["--session-target", stack.targets["session"]]
    environment = {"SPAWNMESH_TOKEN": token}
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn, autocommit=True) as database:

        async def is_blocked() -> bool:
            row = await (await database.execute(_BLOCKED, (holder,))).fetchone()
            return row is not None and bool(row[0])

        async with held_transcripts(stack, tenant_id) as holder:
            code, shown, problem = await commands.run(
                *options, "tenant", "delete", tenant_id, "--yes", "--no-wait", "--json", env=environment
            )
            assert (code, problem) == (0, "")
            started = json.loads(shown)
            assert (started["done"], started["method"]) == (False, "DeleteTenant")
            name = started["name"]
            deleting = asyncio.create_task(
                commands.run(*options, "tenant", "delete", tenant_id, "--yes", "--json", env=environment)
            )
            await eventually(is_blocked)  # A step purges transcript.
            await stack.processes["session-worker"].kill()
            await stack.processes["session"].kill()
        await database.execute(_DUE_AT_SESSION, (tenant_id,))  # The claim would end after 30 s.
        await stack.restart("session")
        await stack.restart("session-worker")
    code, shown, problem = await deleting  # It has waited over the restart.
    assert (code, problem) == (0, "")
    tenant = json.loads(shown)
    assert (tenant["tenant_id"], tenant["state"]) == (tenant_id, "TENANT_STATE_DELETED")
    answer = await request(gateway, "GET", f"/v1/{name}:wait?timeout=60s", token=token)
    done = answer.as_json
    assert (answer.status, done["done"]) == (200, True), done
    response = done["response"]
    assert isinstance(response, dict)
    assert response["tenant"]["deletion"]["deleted_transcript_count"] == "1"
    refused = await request(gateway, "POST", f"/v1/{name}:cancel", token=token, body={})
    assert refused.status == 200  # It is done.
    repeat = f"/v1/tenants/{tenant_id}?request_id={started['request']['request_id']}"
    again = await request(gateway, "DELETE", repeat, token=token)
    assert (again.status, again.as_json) == (200, done)


async def test_operation_is_followed_by_http_and_by_the_command(
    stack: Stack, gateway: str, commands: Commands
) -> None:
    tenant_id = await new_tenant(stack)
    token = stack.client_token(tenant_id)
    async with connect_wire(session=stack.targets["session"], token=token) as client:
        session = await client.spawn("Say hello.", wait_seconds=60)

    async def call(verb: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
        answer = await request(gateway, verb, path, token=token, body=body)
        return answer.status, answer.as_json

    path = f"/v1/transcripts/{session.session_id}:recount"
    status, started = await call("POST", path, {"dry_run": True, "request_id": secrets.token_hex(8)})
    assert status == 200, started
    name = started["name"]
    status, done = await call("GET", f"/v1/{name}:wait?timeout=60s")
    assert (status, done["done"]) == (200, True), done
    response, metadata = done["response"], done["metadata"]
    assert isinstance(response, dict)
    assert isinstance(metadata, dict)
    assert response["@type"] == f"type.googleapis.com/{pb.RecountTranscriptResponse.DESCRIPTOR.full_name}"
    assert int(response["examined_entry_count"]) == int(metadata["total_count"]) > 2
    asked = metadata["request"]
    assert isinstance(asked, dict)
    assert (asked["session_id"], asked["dry_run"]) == (session.session_id, True)
    assert await call("GET", f"/v1/{name}") == (200, done)
    options = [
        one
        for service in ("session", "transcript")
        for one in (f"--{service}-target", stack.targets[service])
    ]
    code, listed, problem = await commands.run(*options, "operations", "list", env={"SPAWNMESH_TOKEN": token})
    assert (code, problem) == (0, "")
    assert session.session_id in listed
    code, shown, _ = await commands.run(
        *options, "operations", "get", str(name), "--json", env={"SPAWNMESH_TOKEN": token}
    )
    assert json.loads(shown)["request"]["session_id"] == session.session_id
    assert json.loads(shown)["subject"] == "devstack"
    status, page = await call("GET", "/v1/services/transcript/operations?page_size=10")
    assert (status, page["operations"]) == (200, [done])
    assert (await call("POST", f"/v1/{name}:cancel", {}))[0] == 200
    assert (await call("DELETE", f"/v1/{name}"))[0] == 200
    assert (await call("GET", f"/v1/{name}"))[0] == 404


async def test_operator_of_the_mesh_collects_garbage_and_follows_it(
    stack: Stack, gateway: str, commands: Commands
) -> None:
    tenant_id = await new_tenant(stack)
    token = stack.admin_token()
    options = ["--tenant", tenant_id]
    for service in ("session", "attachment-blob"):
        options += [f"--{service}-target", stack.targets[service]]
    environment = {"SPAWNMESH_TOKEN": token}
    code, shown, problem = await commands.run(*options, "attachments", "gc", env=environment)
    assert (code, problem) == (0, ""), problem
    assert "objects looked at" in shown
    code, listed, problem = await commands.run(
        *options, "operations", "list", "--service", "attachment-blob", "--of-operators", env=environment
    )
    assert (code, problem) == (0, "")
    assert "CollectGarbage" in listed

    async def call(verb: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
        answer = await request(gateway, verb, path, token=token, body=body)
        return answer.status, answer.as_json

    body = {"dry_run": True, "request_id": secrets.token_hex(8)}
    status, started = await call("POST", f"/v1/tenants/{tenant_id}:collectGarbage", body)
    assert status == 200, started
    name = str(started["name"])
    parent = f"services/attachment-blob/tenants/{tenant_id}/operations"
    assert name.startswith(f"{parent}/opr_")
    status, done = await call("GET", f"/v1/{name}:wait?timeout=60s")
    assert (status, done["done"]) == (200, True), done
    assert await call("GET", f"/v1/{name}") == (200, done)
    status, page = await call("GET", f"/v1/{parent}?page_size=1")
    assert (status, page["operations"]) == (200, [done])
    code, shown, _ = await commands.run(*options, "operations", "wait", name, "--json", env=environment)
    assert (code, json.loads(shown)["state"]) == (0, "done")
    assert (await call("POST", f"/v1/{name}:cancel", {}))[0] == 200
    assert (await call("DELETE", f"/v1/{name}"))[0] == 200
    assert (await call("GET", f"/v1/{name}"))[0] == 404
    client = stack.client_token(tenant_id)
    other = await request(gateway, "GET", f"/v1/{parent}", token=client)
    assert other.status == 404
