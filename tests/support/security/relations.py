"""The tables and views of the services, as PostgreSQL shows them to a role in a scope.

What is not listed here has rows of tenants and shows them in the scope of their tenant alone. A new
table, a new column or a new policy for the scope of every tenant fails a test until somebody has
decided about it here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row


class Kind(StrEnum):
    """The kinds of columns that are read over all tenants."""

    ID = "id"  # Of a tenant, a run, a job or a model: no text of a conversation.
    TIME = "time"
    COUNTER = "counter"  # A number of things, bytes or attempts, or a limit for one.
    STATE = "state"  # One of a few words of the code, or a boolean.
    LIMITS = "limits"  # Counters by the names of classes of RPCs.
    HASH = "hash"


TYPES = {
    Kind.ID: {"text", "text[]", "uuid", "bigint"},
    Kind.TIME: {"timestamp with time zone"},
    Kind.COUNTER: {"integer", "bigint"},
    Kind.STATE: {"text", "boolean"},
    Kind.LIMITS: {"jsonb"},
    Kind.HASH: {"bytea"},
}

_JOB_QUEUE = {
    "tenant_id": Kind.ID,
    "kind": Kind.STATE,
    "key": Kind.ID,
    "due_time": Kind.TIME,
    "attempt_count": Kind.COUNTER,
    "claim_id": Kind.ID,
    "create_time": Kind.TIME,
    "dead_time": Kind.TIME,
}

_SERVICES = ("session", "hook", "attachment_blob", "transcript", "model_router")
_AUDIT_CHAINS = {
    "tenant_id": Kind.ID,
    "last_sequence": Kind.COUNTER,
    "last_hash": Kind.HASH,
    "hidden_sequence": Kind.COUNTER,
    "cut_sequence": Kind.COUNTER,
    "cut_hash": Kind.HASH,
}
# Text that does not look like an id is hashed before it is stored.
_AUDIT_EVENTS = {
    "tenant_id": Kind.ID,
    "sequence": Kind.COUNTER,
    "event_id": Kind.ID,
    "event_time": Kind.TIME,
    "last_time": Kind.TIME,
    "call_count": Kind.COUNTER,
    "method": Kind.STATE,
    "caller_kind": Kind.STATE,
    "subject": Kind.ID,
    "token_id": Kind.ID,
    "resources": Kind.ID,
    "code": Kind.STATE,
    "reason": Kind.STATE,
    "trace_id": Kind.ID,
    "peer": Kind.ID,
    "hash": Kind.HASH,
}

EVERY_TENANT: Mapping[str, Mapping[str, Kind]] = {
    **{f"{service}.audit_chains": _AUDIT_CHAINS for service in _SERVICES},
    **{f"{service}.audit_events": _AUDIT_EVENTS for service in _SERVICES},
    "session.tenant_directory": {
        "tenant_id": Kind.ID,
        "max_running_run_count": Kind.COUNTER,
        "run_weight": Kind.COUNTER,
        "call_limits": Kind.LIMITS,
        "next_retention_time": Kind.TIME,
        "is_listed": Kind.STATE,
        "size_bytes": Kind.COUNTER,
    },
    "session.run_queue": {
        "tenant_id": Kind.ID,
        "run_id": Kind.ID,
        "due_time": Kind.TIME,
        "expire_time": Kind.TIME,
        "again_time": Kind.TIME,
        "max_attempts": Kind.COUNTER,
        "attempts_left": Kind.COUNTER,
        "leased": Kind.STATE,
        "parked": Kind.STATE,
        "park_time": Kind.TIME,
        "for_budget": Kind.STATE,
        "epoch": Kind.COUNTER,
        "runtime": Kind.STATE,
        "agent_id": Kind.ID,
    },
    "session.job_queue": _JOB_QUEUE,
    "attachment_blob.job_queue": _JOB_QUEUE,
    "session.revoked_tokens": {
        "tenant_id": Kind.ID,
        "token_id": Kind.ID,
        "is_run": Kind.STATE,
        "expire_time": Kind.TIME,
        "change": Kind.ID,
    },
    "hook.job_queue": _JOB_QUEUE,
    "hook.tenant_work": {"tenant_id": Kind.ID},
    "attachment_blob.tenant_work": {"tenant_id": Kind.ID, "collect_time": Kind.TIME},
    "transcript.job_queue": _JOB_QUEUE,
    "transcript.tenant_work": {"tenant_id": Kind.ID, "work_time": Kind.TIME},
    # A row without a tenant, which is a cooldown of all tenants, has the tenant id `*`.
    "model_router.cooldowns": {
        "tenant_id": Kind.ID,
        "scope": Kind.STATE,
        "target": Kind.ID,
        "until_time": Kind.TIME,
        "failure_count": Kind.COUNTER,
        "reason": Kind.STATE,
        "counted_time": Kind.TIME,
        "last_failure_time": Kind.TIME,
    },
    "model_router.unconfirmed_failures": {
        "tenant_id": Kind.ID,
        "scope": Kind.STATE,
        "target": Kind.ID,
        "failed_tenant_id": Kind.ID,
        "reason": Kind.STATE,
        "failure_time": Kind.TIME,
    },
}
"""The relations with rows of several tenants in the scope `*`, and all of their columns."""

WRITTEN_FOR_EVERY_TENANT = {
    **{f"{service}.audit_chains": {"insert", "update"} for service in _SERVICES},
    **{f"{service}.audit_events": {"insert"} for service in _SERVICES},
    "session.run_queue": {"update"},  # A claim leases runs.
    "session.job_queue": {"update"},  # A claim makes jobs due later.
    "attachment_blob.job_queue": {"update"},
    "hook.job_queue": {"update"},
    "transcript.job_queue": {"update"},
    "session.revoked_tokens": {"update", "delete"},  # Expired ones are pruned.
}
"""The relations whose rows a transaction in the scope `*` may add or change."""

WITHOUT_TENANTS = {
    "_spawnmesh_worker": "heartbeats of processes",
    "service_uptime": "since when a service has been serving",
    "shared_hooks": "the hooks that plugins of the operator have",
    "served_time": "the time for which a service has been serving",
    "_spawnmesh_channels": "the suffix of the service's channels",
    "_yoyo_checksum": "the applied migrations",
    "_yoyo_log": "the applied migrations",
    "_yoyo_migration": "the applied migrations",
    "_yoyo_version": "the applied migrations",
    "yoyo_lock": "the applied migrations",
}
"""The tables of every schema that belong to no tenant, and what they hold."""

SECURITY_DEFINERS: set[str] = set()
"""The functions that run with the rights of their owner."""

_RELATIONS = """
select n.nspname as schema, c.relname as name, c.relkind::text as kind, c.relrowsecurity as is_enabled,
       c.relforcerowsecurity as is_forced, pg_get_userbyid(c.relowner) as owner,
       coalesce(c.reloptions @> array['security_invoker=true'], false) as is_invoker,
       (select jsonb_object_agg(a.attname, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), null))
        from pg_attribute a join pg_type t on t.oid = a.atttypid
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as columns
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where n.nspname = any (%(schemas)s) and c.relkind in ('r', 'p', 'v', 'm', 'f')
order by n.nspname, c.relname
"""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table (`r`) or a view (`v`), or one of the other kinds of PostgreSQL."""

    schema: str
    name: str
    kind: str
    is_enabled: bool
    is_forced: bool
    owner: str
    is_invoker: bool
    columns: Mapping[str, str]

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def has_tenants(self) -> bool:
        return self.name not in WITHOUT_TENANTS


def list_relations(superuser_dsn: str, schemas: list[str]) -> list[Relation]:
    """Return every table and view of the schemas."""
    with psycopg.connect(superuser_dsn, row_factory=dict_row) as connection:
        rows = connection.execute(_RELATIONS, {"schemas": schemas}).fetchall()
    return [Relation(**row) for row in rows]


def set_scope(connection: psycopg.Connection[Any], scope: str | None) -> None:
    """Set the tenant of the transaction. None leaves it as it is: without one."""
    if scope is not None:
        connection.execute("select set_config('spawnmesh.tenant', %s, true)", (scope,))


def read(connection: psycopg.Connection[Any], relation: Relation) -> list[dict[str, Any]]:
    """Return all rows that the role sees, by a statement without a condition."""
    name = sql.Identifier(relation.schema, relation.name)
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(sql.SQL("select * from {}").format(name)).fetchall()


def holds(value: object, marker: str) -> bool:
    """Return whether the value of a column contains the text."""
    if isinstance(value, bytes):
        return marker.encode() in value
    if isinstance(value, dict | list):
        return marker in json.dumps(value, default=str)
    return marker in str(value)


def count_writable(connection: psycopg.Connection[Any], relation: Relation) -> dict[str, int]:
    """Return how many rows an update and a delete without a condition change. Nothing is kept."""
    name = sql.Identifier(relation.schema, relation.name)
    statements = {
        "update": sql.SQL("update {} set tenant_id = tenant_id").format(name),
        "delete": sql.SQL("delete from {}").format(name),
    }
    counts: dict[str, int] = {}
    for verb, statement in statements.items():
        with connection.transaction(force_rollback=True):
            try:
                counts[verb] = connection.execute(statement).rowcount
            except (
                psycopg.errors.InsufficientPrivilege,
                psycopg.errors.ObjectNotInPrerequisiteState,
                psycopg.errors.FeatureNotSupported,
            ):
                counts[verb] = 0  # A view that nothing can be written through, or a table without a grant.
    return counts
