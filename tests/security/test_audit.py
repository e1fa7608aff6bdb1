"""Every RPC that is called without permission is in the audit log."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from spawnmesh_core.audit_event import AuditEvent
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import create_service_database
from spawnmesh_postgres.audit.log import open_audit_log
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.postgres.audit import create_audit_tables, stored
from tests.support.security.attacked import open_attacked
from tests.support.security.raw_calls import METHODS, allowed_token, bearer, refused, token_of

STRANGE = "t-strange"


@pytest.fixture
async def database(postgres: Postgres) -> AsyncIterator[Database]:
    name = "scratch_security"
    dsn = (await create_service_database(postgres.superuser_dsn, [name]))[name]
    await asyncio.to_thread(create_audit_tables, dsn, name)
    async with open_database(dsn.app, name="test audit", max_connections=2) as opened:
        yield opened


def audited_name(full_name: str) -> str:
    service, _, rpc = full_name.rpartition(".")
    return f"{service}/{rpc}"


async def test_every_rpc_records_a_call_without_permission(keys: Path, database: Database) -> None:
    wrong = {kind: token_of(keys, kind) for kind in (CallerKind.RUNNER, CallerKind.RUN)}
    denied: dict[str, set[tuple[str, str]]] = {}
    async with open_audit_log(database) as audit, open_attacked(keys, record=audit.record) as attacked:
        options = [("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(attacked.target, options=options) as channel:
            for method in METHODS.values():
                kind = next(one for one in wrong if one not in policy_of(method).callers)
                for caller, token in (("", ""), ("", "forged"), (kind.value, wrong[kind])):
                    headers = (bearer(token),) if token else ()
                    got = await refused(channel, method, b"", headers=headers)
                    assert got.reason is not None, (method.full_name, got)
                    denied.setdefault(audited_name(method.full_name), set()).add((caller, got.reason.value))
        await attacked.settled()
    found: dict[str, set[tuple[str, str]]] = {}
    for event in await stored(database):
        if event.tenant_id == STRANGE:
            continue  # Of another test.
        found.setdefault(event.method, set()).add((event.caller_kind, event.reason))
    assert attacked.reached == []
    assert found == denied
    assert {len(reasons) for reasons in found.values()} == {3}


async def test_every_rpc_records_a_call_with_a_revoked_token(keys: Path) -> None:
    events: list[AuditEvent] = []
    expected = set()
    async with open_attacked(keys, record=events.append) as attacked:
        options = [("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(attacked.target, options=options) as channel:
            for method in METHODS.values():
                policy = policy_of(method)
                if min(policy.callers) in (CallerKind.SERVICE, CallerKind.RUN):
                    continue  # The tokens of services are not revoked, and some RPCs look at the run.
                token = allowed_token(keys, method)
                assert attacked.process.verifier is not None
                caller = await attacked.process.verifier.authenticate(token)
                attacked.process.revoked.add(caller.revocation_key, caller.expire_timestamp)
                await refused(channel, method, b"", headers=(bearer(token),))
                expected.add((audited_name(method.full_name), "TOKEN_REVOKED", caller.token_id))
        await attacked.settled()
    assert {(event.method, event.reason, event.token_id) for event in events} == expected
    assert len(expected) > 40


async def test_token_of_the_caller_is_never_recorded(keys: Path) -> None:
    events: list[AuditEvent] = []
    secrets = []
    async with open_attacked(keys, record=events.append) as attacked:
        options = [("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(attacked.target, options=options) as channel:
            for method in METHODS.values():
                token = allowed_token(keys, method)
                secrets.append(token.rpartition(".")[2])
                await refused(channel, method, b"", headers=(bearer(token),))
                await refused(channel, method, b"", headers=(bearer(f"{token}x"),))
        await attacked.settled()
    text = repr(events) + repr(attacked.events)
    assert len(events) > len(METHODS)
    lines = [line for line in attacked.events if line.get("audit")]
    # A hundred refused calls a second have a log event, in the order of the calls.
    assert len(lines) >= 100
    expected = iter([(event.method, event.subject, event.token_id, event.resources) for event in events])
    assert all(
        (line["method"], line["subject"], line["token"], line["resources"]) in expected for line in lines
    )
    assert {line["peer"] for line in lines} <= {"127.0.0.1", "::1"}
    assert not [secret for secret in secrets if secret in text]


async def test_subject_that_cannot_be_stored_keeps_no_other_event_waiting(
    keys: Path, database: Database
) -> None:
    minter = TokenMinter("client", keys / "client.pem")
    tokens = [minter.client_token(STRANGE, name, 60) for name in ("a\0b", "c\ud800d", "e" * 999)]
    heartbeat = METHODS["spawnmesh.session.v1.RunService.HeartbeatRun"]
    async with open_audit_log(database) as audit, open_attacked(keys, record=audit.record) as attacked:
        options = [("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(attacked.target, options=options) as channel:
            for token in tokens:
                await refused(channel, heartbeat, b"", headers=(bearer(token),))
        await attacked.settled()
    subjects = [event.subject for event in await stored(database, STRANGE)]
    assert subjects == ["a?b", "c?d", "e" * 256]
