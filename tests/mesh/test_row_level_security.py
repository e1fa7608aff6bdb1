"""Every table and view of the mesh, read as every role in every scope, after runs with content."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.attachment_blob.v1.attachment_pb2 import InlineAttachment
from spawnmesh.hook.v1 import event_pb2, hook_service_pb2
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import schedule_pb2, schedule_service_pb2, session_pb2
from spawnmesh.session.v1.output_pb2 import PublishFilesRequest
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.session.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, TenantSettings
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.models import SCRIPTED_AGENT
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.security.relations import (
    EVERY_TENANT,
    SECURITY_DEFINERS,
    TYPES,
    WRITTEN_FOR_EVERY_TENANT,
    Relation,
    count_writable,
    holds,
    list_relations,
    read,
    set_scope,
)
from tests.support.waiting import eventually

_AGENT = "lister"  # It answers with the names of its files.
_ASKER = "asker"  # It asks a person, and waits for the answer.
_OBSERVED = [
    event_pb2.HOOK_KIND_LLM_INPUT,
    event_pb2.HOOK_KIND_LLM_OUTPUT,
    event_pb2.HOOK_KIND_AFTER_TOOL_CALL,
    event_pb2.HOOK_KIND_SUBAGENT_ENDED,
    event_pb2.HOOK_KIND_SESSION_START,
    event_pb2.HOOK_KIND_AGENT_END,
]
WITH_CONTENT = {
    "session.agents",  # The prompt of an agent.
    "session.approvals",
    "session.inbox_messages",
    "session.output_sets",
    "session.runs",  # The answer.
    "session.schedules",
    "session.sessions",  # The label.
    "session.tenants",  # The display name.
    "transcript.entries",
    "attachment_blob.set_files",  # The name of a file.
    "hook.observed_events",  # What the observer, which is away, has not received yet.
    "hook.plugins",  # The endpoint.
}
"""The tables in which the text of the tenant must have arrived. There are more."""


@dataclass(frozen=True)
class Filled:
    """A mesh in which two tenants have run agents. `marker` is in every text that `tenant` sent."""

    stack: Stack
    relations: list[Relation]
    tenant: str
    other: str
    marker: str

    @property
    def services(self) -> list[str]:
        return sorted(self.stack.databases)

    @contextmanager
    def entered(self, service: str, scope: str | None) -> Iterator[psycopg.Connection]:
        """Open a transaction as the role of the service, in the scope."""
        with psycopg.connect(self.stack.databases[service].app) as connection:
            set_scope(connection, scope)
            yield connection
            connection.rollback()

    def of(self, service: str) -> list[Relation]:
        """Return the relations of the service that have rows of tenants."""
        return [one for one in self.relations if one.schema == service and one.has_tenants]


async def _fill(stack: Stack, tenant: str, marker: str) -> None:
    """Run an agent with a file, a prompt, an observer that is away, and a message."""
    targets = {name.replace("-", "_"): target for name, target in stack.targets.items()}
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant, display_name=f"tenant {marker}", settings=TenantSettings())
    async with connect_wire(**targets, token=stack.client_token(tenant)) as mesh:
        await mesh.put_agent(
            AgentProfile(
                agent_id=_AGENT,
                system_prompt=f"List your files. Your secret is {marker}.",
                models=[SCRIPTED_AGENT],
                tools=["list_files", "read_file"],
            )
        )
        asks = {"question": f"Is it {marker}?"}
        await mesh.put_agent(
            AgentProfile(
                agent_id=_ASKER,
                system_prompt="You are the caller.",
                models=[SCRIPTED_AGENT],
                tools=["ask_user"],
            )
        )
        asker = await mesh.spawn(f"ask_user {json.dumps(asks)}", agent_id=_ASKER)
        await _register_observer(mesh, marker)
        await _put_schedule(mesh, marker)
        files = [Attachment(f"{marker}.txt", f"the secret is {marker}\n".encode())]
        session = await mesh.spawn(
            f"Tell the names. {marker}",
            agent_id=_AGENT,
            attachments=files,
            label=marker,
            mode=session_pb2.SESSION_MODE_SESSION,  # It stays open, with its files.
            wait_seconds=60,
        )
        assert marker in session.latest_run.result_text
        await _publish(stack, mesh, tenant, marker)
        await mesh.send(session.session_id, f"And once more. {marker}")
        assert (await mesh.wait(session.session_id, 60)).done
        await eventually(lambda: _waits(mesh, asker.session_id))


async def _publish(stack: Stack, mesh: WireMesh, tenant: str, marker: str) -> None:
    """Publish a file as the runner of an external session, which stays RUNNING.

    Runs of other tests on the same mesh may wait for such a runner: it serves this tenant alone.
    """
    session = await mesh.spawn("Publish a file.", runtime=session_pb2.RUNTIME_EXTERNAL)
    claim = run_pb.ClaimRunsRequest(
        runner_id="publisher",
        max_run_count=1,
        runtimes=[session_pb2.RUNTIME_EXTERNAL],
        wait=Duration(seconds=20),
    )
    token = TokenMinter("runner", stack.keys / "runner.pem").runner_token(tenants=[tenant])
    async with connect_wire(session=stack.targets["session"], token=token) as runner:
        peer = runner.service("session")
        [claimed] = (await peer.unary(RunServiceStub(peer.channel).ClaimRuns, claim, timeout_seconds=60)).runs
    assert claimed.session.session_id == session.session_id
    request = PublishFilesRequest(
        epoch=claimed.run.epoch,
        request_id=marker,
        files=[InlineAttachment(name=f"{marker}.txt", data=marker.encode())],
    )
    async with connect_wire(session=stack.targets["session"], token=claimed.run_token) as run:
        peer = run.service("session")
        await peer.unary(RunServiceStub(peer.channel).PublishFiles, request, timeout_seconds=60)


async def _waits(mesh: WireMesh, session_id: str) -> bool:
    run = (await mesh.session(session_id)).latest_run
    return run.state == session_pb2.RUN_STATE_WAITING_APPROVAL


async def _put_schedule(mesh: WireMesh, marker: str) -> None:
    """Create a schedule that is not due soon, and that has not fired."""
    spawn = schedule_pb2.ScheduledSpawn(task=f"Sum up {marker}.", agent_id=_AGENT)
    schedule = schedule_pb2.Schedule(name="yearly", cron="0 0 1 1 *", spawn=spawn)
    request = schedule_service_pb2.UpdateScheduleRequest(schedule=schedule, allow_missing=True)
    session = mesh.service("session")
    await session.unary(ScheduleServiceStub(session.channel).UpdateSchedule, request, timeout_seconds=60)


async def _register_observer(mesh: WireMesh, marker: str) -> None:
    plugin = hook_service_pb2.Plugin(
        name="away",
        endpoint=f"grpc://{marker}.invalid:{free_ports(1)[0]}",
        hooks=_OBSERVED,
        timeout=Duration(seconds=1),
        grants=[hook_service_pb2.GRANT_CONVERSATION_ACCESS],
    )
    hooks = mesh.service("hook")
    stub = HookServiceStub(hooks.channel)
    await hooks.unary(
        stub.UpdatePlugin,
        hook_service_pb2.UpdatePluginRequest(allow_missing=True, plugin=plugin, allow_unreachable=True),
        timeout_seconds=60,
    )


@pytest.fixture(scope="module")
async def filled(stack: Stack) -> Filled:
    tenant, other, marker = (f"{kind}{uuid4().hex[:12]}" for kind in ("t-", "t-", "marker"))
    await asyncio.gather(_fill(stack, tenant, marker), _fill(stack, other, f"other{uuid4().hex[:12]}"))
    relations = list_relations(stack.superuser_dsn, sorted(stack.databases))
    return Filled(stack, relations, tenant, other, marker)


def test_every_table_is_enabled_and_forced_and_every_view_is_listed(filled: Filled) -> None:
    tables = [one for one in filled.relations if one.kind == "r" and one.has_tenants]
    assert len(tables) > 30
    assert [one.full_name for one in tables if not (one.is_enabled and one.is_forced)] == []
    views = [one for one in filled.relations if one.kind == "v"]
    # Another view reads with the rights of the role that uses it.
    assert [one.full_name for one in views if not one.is_invoker and one.full_name not in EVERY_TENANT] == []
    assert {one.kind for one in filled.relations} == {"r", "v"}
    assert {one.owner for one in filled.relations} == {f"{service}_owner" for service in filled.services}
    assert EVERY_TENANT.keys() <= {one.full_name for one in filled.relations}


def test_content_of_the_tenant_is_stored(filled: Filled) -> None:
    with psycopg.connect(filled.stack.superuser_dsn) as superuser:
        found = {
            one.full_name
            for one in filled.relations
            if any(holds(value, filled.marker) for row in read(superuser, one) for value in row.values())
        }
    assert found >= WITH_CONTENT


def test_without_a_tenant_no_role_sees_a_row(filled: Filled) -> None:
    for service in filled.services:
        dsn = filled.stack.databases[service]
        for role in (dsn.app, dsn.owner):
            with psycopg.connect(role) as connection:
                seen = {one.full_name for one in filled.of(service) if read(connection, one)}
            assert seen == set()


def test_tenant_sees_its_own_rows_and_all_of_them(filled: Filled) -> None:
    filled_count = 0
    with psycopg.connect(filled.stack.superuser_dsn) as superuser:
        for service in filled.services:
            with filled.entered(service, filled.tenant) as connection:
                for relation in filled.of(service):
                    seen = read(connection, relation)
                    assert {row["tenant_id"] for row in seen} <= {filled.tenant}, relation.full_name
                    filled_count += bool(seen)
                    if relation.kind == "v" or relation.name == "jobs":
                        continue  # A superuser reads a view as its owner, and a job may end meanwhile.
                    own = [row for row in read(superuser, relation) if row["tenant_id"] == filled.tenant]
                    assert bool(seen) == bool(own), relation.full_name
    assert filled_count > 20


def test_scope_of_every_tenant_shows_listed_relations_without_content(filled: Filled) -> None:
    for service in filled.services:
        with filled.entered(service, "*") as connection:
            for relation in filled.relations:
                if relation.schema != service:
                    continue
                rows = read(connection, relation)
                leaks = [row for row in rows if any(holds(value, filled.marker) for value in row.values())]
                assert leaks == [], relation.full_name
                if relation.has_tenants and relation.full_name not in EVERY_TENANT:
                    assert rows == [], relation.full_name


def test_scope_of_every_tenant_serves_the_workers(filled: Filled) -> None:
    """The lists of tenants are complete. Otherwise, an empty view would pass the other tests."""
    for name in (one for one in EVERY_TENANT if one.endswith(("tenant_directory", "tenant_work"))):
        [relation] = [one for one in filled.relations if one.full_name == name]
        with filled.entered(relation.schema, "*") as connection:
            assert {filled.tenant, filled.other} <= {row["tenant_id"] for row in read(connection, relation)}


def test_columns_that_are_read_over_all_tenants_have_kinds_without_content(filled: Filled) -> None:
    for relation in filled.relations:
        if listed := EVERY_TENANT.get(relation.full_name):
            assert relation.columns.keys() == listed.keys(), relation.full_name
            for column, kind in listed.items():
                assert relation.columns[column] in TYPES[kind], f"{relation.full_name}.{column}"


def test_policies_for_every_tenant_reach_the_role_of_the_service_on_listed_tables_alone(
    filled: Filled,
) -> None:
    """Also those of tables that had no rows in the other tests."""
    query = """
        select schemaname || '.' || tablename, policyname, roles::text[], lower(cmd), qual, with_check
        from pg_policies"""
    with psycopg.connect(filled.stack.superuser_dsn) as superuser:
        policies = superuser.execute(query).fetchall()
    tables = {one.full_name for one in filled.relations if one.kind == "r" and one.has_tenants}
    own = "(tenant_id = current_setting('spawnmesh.tenant'::text, true))"
    assert {table for table, name, *_ in policies if name == "tenant"} == tables
    for table, name, roles, verb, condition, check in policies:
        if name == "tenant":
            assert (roles, condition) == (["public"], own), table
            assert check in (None, own), table
        elif (condition or check) != own:
            assert "(current_setting('spawnmesh.tenant'::text, true) = '*'::text)" in (condition or check)
            is_owners = roles == [f"{table.partition('.')[0]}_owner"]
            assert table in EVERY_TENANT or is_owners, (table, name)
            written = {"update", "delete"} if is_owners else WRITTEN_FOR_EVERY_TENANT.get(table, set())
            assert verb in {"select", *written}, (table, name)


def test_scope_of_every_tenant_changes_rows_of_queues_alone(filled: Filled) -> None:
    for service in filled.services:
        with filled.entered(service, "*") as connection:
            for relation in filled.of(service):
                allowed = WRITTEN_FOR_EVERY_TENANT.get(relation.full_name, set())
                # The rows without a tenant, such as a cooldown of all tenants, belong to the scope.
                rows = sum(row["tenant_id"] == "*" for row in read(connection, relation))
                for verb, count in count_writable(connection, relation).items():
                    assert count <= rows or verb in allowed, f"{verb} {relation.full_name}"


def test_scope_of_every_tenant_adds_events_of_the_audit_log_alone(filled: Filled) -> None:
    for service in filled.services:
        with filled.entered(service, "*") as connection:
            for relation in filled.of(service):
                if "insert" in WRITTEN_FOR_EVERY_TENANT.get(relation.full_name, set()):
                    continue
                statement = f"insert into {relation.full_name} (tenant_id) values ('{filled.tenant}')"
                refusals = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState)
                with pytest.raises(refusals), connection.transaction():
                    connection.execute(statement.encode())


def test_no_role_of_a_service_bypasses_or_becomes_another(filled: Filled) -> None:
    query = """
        select rolname from pg_roles
        where rolname = any (%(roles)s)
          and (rolsuper or rolbypassrls or rolcreatedb or rolcreaterole or rolreplication
               or exists (select from pg_auth_members m where m.member = pg_roles.oid))"""
    roles = [role for service in filled.services for role in (service, f"{service}_owner")]
    others = "select rolname from pg_roles where rolcanlogin and not rolsuper and rolname <> all (%(roles)s)"
    with psycopg.connect(filled.stack.superuser_dsn) as superuser:
        assert superuser.execute(query, {"roles": roles}).fetchall() == []
        assert superuser.execute(others, {"roles": roles}).fetchall() == []


def test_no_role_has_a_right_in_the_schema_of_another_service(filled: Filled) -> None:
    query = """
        select s.nspname, r.rolname, c.relname
        from pg_namespace s
        join pg_roles r on r.rolname = any (%(roles)s)
                       and r.rolname not in (s.nspname, s.nspname || '_owner')
        left join pg_class c on c.relnamespace = s.oid and c.relkind in ('r', 'v', 'p', 'm', 'f')
        left join pg_class q on q.relnamespace = s.oid and q.relkind = 'S'
        left join pg_proc f on f.pronamespace = s.oid
        where s.nspname = any (%(services)s)
          and (has_schema_privilege(r.oid, s.oid, 'usage, create')
               or has_table_privilege(r.oid, c.oid, 'select, insert, update, delete, truncate, references, trigger')
               or has_any_column_privilege(r.oid, c.oid, 'select, insert, update, references')
               or has_sequence_privilege(r.oid, q.oid, 'usage, select, update')
               or has_function_privilege(r.oid, f.oid, 'execute'))"""
    roles = [role for service in filled.services for role in (service, f"{service}_owner")]
    with psycopg.connect(filled.stack.superuser_dsn) as superuser:
        values = {"roles": roles, "services": filled.services}
        assert superuser.execute(query, values).fetchall() == []


def test_role_of_a_service_reads_and_writes_rows_and_can_do_nothing_more(filled: Filled) -> None:
    query = """
        select c.relname from pg_class c
        join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = %(service)s and c.relkind in ('r', 'v')
          and (has_table_privilege(%(service)s, c.oid, 'truncate, references, trigger')
               or has_schema_privilege(%(service)s, n.oid, 'create'))"""
    with psycopg.connect(filled.stack.superuser_dsn) as superuser:
        for service in filled.services:
            assert superuser.execute(query, {"service": service}).fetchall() == []


def test_no_function_runs_with_the_rights_of_its_owner(filled: Filled) -> None:
    query = """
        select n.nspname || '.' || p.proname from pg_proc p
        join pg_namespace n on n.oid = p.pronamespace
        where p.prosecdef and n.nspname = any (%(services)s)"""
    with psycopg.connect(filled.stack.superuser_dsn) as superuser:
        rows = superuser.execute(query, {"services": filled.services}).fetchall()
    assert {name for (name,) in rows} == SECURITY_DEFINERS
