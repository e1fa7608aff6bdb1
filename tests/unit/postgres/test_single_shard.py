"""Each named statement runs on the node of its tenant, in a schema that Citus distributes."""

from functools import cache

import pytest

from tests.support.citus.shards import Routing, routing_of, schema_of
from tests.support.citus.statements import schema, statements

_QUEUE = "the entry of the queue must be there exactly if the row is"
_SETTINGS = "the tenant's settings have their home beside the list of all tenants"
WITH_THE_COORDINATOR = {
    ("session", "begin_spawn"): f"{_QUEUE}; {_SETTINGS}",
    ("session", "insert_session"): _QUEUE,
    ("session", "activate_session"): _QUEUE,
    ("session", "queue_run"): _QUEUE,
    ("session", "claim_run"): _QUEUE,
    ("session", "end_run"): _QUEUE,
    ("session", "forget_deleted_sessions"): "a row stays while the queue says that work is left for it",
}
"""Statements that use tables of one tenant and tables of the coordinator, and why. Citus runs the
parts one after the other."""

SCHEMA = schema_of(
    [
        """
        create table heads (tenant_id text primary key, seq bigint);
        create table entries (tenant_id text, seq bigint, body text, primary key (tenant_id, seq));
        create table queue (tenant_id text, id text, primary key (tenant_id, id));
        comment on table queue is 'citus: local';
        create table versions (id text primary key);
        """
    ]
)


@cache
def routings() -> list[tuple[tuple[str, str], Routing]]:
    """Return the service and the name of every statement, with its routing."""
    return [((service, name), routing_of(text, schema(service))) for service, name, text in statements()]


def test_every_combination_of_fragments_is_checked() -> None:
    texts = {text for service, name, text in statements() if name.startswith("append ")}
    assert len(texts) == 144


def test_no_statement_reads_distributed_tables_of_every_tenant() -> None:
    assert {name: routing.unbound for name, routing in routings() if routing.unbound} == {}


def test_statements_that_use_the_coordinator_too_are_those_that_are_listed() -> None:
    mixed = {name for name, routing in routings() if routing.local and routing.distributed}
    assert mixed == WITH_THE_COORDINATOR.keys()


def test_statements_have_no_form_that_citus_refuses() -> None:
    refused = {
        name: routing.refused for name, routing in routings() if routing.distributed and routing.refused
    }
    assert refused == {}


def routing(statement: str) -> Routing:
    return routing_of(statement, SCHEMA)


@pytest.mark.parametrize(
    "statement",
    [
        "select * from heads where tenant_id = %(tenant_id)s",
        "select * from heads h join entries e on e.tenant_id = h.tenant_id where h.tenant_id = %(tenant_id)s",
        "select (select true from entries e where e.tenant_id = %(tenant_id)s limit 1) from heads h"
        " where h.tenant_id = %(tenant_id)s",
        "insert into heads (tenant_id, seq) values (%(tenant_id)s, 1)",
        "with head as (update heads set seq = seq + 1 where tenant_id = %(tenant_id)s returning tenant_id, seq)"
        " insert into entries (tenant_id, seq) select head.tenant_id, head.seq from head",
        "with recursive up as (select seq from entries where tenant_id = %(tenant_id)s union all"
        " select e.seq from up join entries e on e.tenant_id = %(tenant_id)s and e.seq = up.seq)"
        " select * from up",
        "delete from entries using heads where entries.tenant_id = heads.tenant_id"
        " and heads.tenant_id = %(tenant_id)s",
        "select * from queue where id > %(after)s",
        "select * from versions",
    ],
)
def test_statement_of_one_tenant_is_bound_to_its_shard(statement: str) -> None:
    assert not routing(statement).unbound


@pytest.mark.parametrize(
    ("statement", "unbound"),
    [
        ("select * from heads", {"heads"}),
        ("select * from heads where tenant_id = %(tenant_id)s or seq = 1", {"heads"}),
        ("select * from heads where tenant_id = (select %(tenant_id)s)", {"heads"}),
        ("select * from heads where tenant_id = %(other)s", {"heads"}),
        (
            "select * from heads h join entries e on e.seq = h.seq where h.tenant_id = %(tenant_id)s",
            {"entries"},
        ),
        (
            "select (select true from entries e where e.tenant_id = h.tenant_id) from heads h"
            " where h.tenant_id = %(tenant_id)s",
            {"entries"},
        ),
        (
            "select * from heads where tenant_id = %(tenant_id)s and exists (select from entries)",
            {"entries"},
        ),
        (
            "with page as (select seq from entries where tenant_id = %(tenant_id)s)"
            " delete from entries e using page where e.seq = page.seq",
            {"entries"},
        ),
        ("insert into heads (tenant_id, seq) values (%(other)s, 1)", {"heads"}),
        ("insert into heads (tenant_id, seq) select id, 1 from versions", {"heads"}),
        ("update heads set seq = 1 where tenant_id = current_setting('spawnmesh.tenant')", {"heads"}),
    ],
)
def test_table_without_a_fixed_tenant_is_found(statement: str, unbound: set[str]) -> None:
    assert routing(statement).unbound == unbound


@pytest.mark.parametrize(
    "statement",
    [
        "merge into heads h using entries e on h.tenant_id = e.tenant_id when matched then delete",
        "with merged as (merge into heads h using entries e on h.seq = e.seq when matched then delete"
        " returning h.seq) select * from merged",
        "select * from heads tablesample system (1) where tenant_id = %(tenant_id)s",
        "truncate heads",
    ],
)
def test_form_that_is_not_checked_fails(statement: str) -> None:
    with pytest.raises(ValueError, match="not checked"):
        routing(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "insert into heads (tenant_id, seq) select %(tenant_id)s, n from unnest(%(numbers)s::int[]) n",
        "insert into entries (tenant_id, seq) select h.tenant_id, h.seq from heads h"
        " where h.tenant_id = %(tenant_id)s returning seq",
        "insert into heads (tenant_id) values (%(tenant_id)s) on conflict (tenant_id) do update"
        " set seq = extract(epoch from now())",
        "insert into heads (tenant_id) values (%(tenant_id)s) returning now() as moment",
        "update heads set seq = 1 where tenant_id = %(tenant_id)s"
        " and (seq, 'a') = (select seq, body from entries where tenant_id = %(tenant_id)s)",
        "delete from entries where tenant_id = %(tenant_id)s and seq > case body when 'a' then 1 else 2 end",
        "update heads set seq = case when now() > %(time)s then 1 end where tenant_id = %(tenant_id)s",
        "update heads set seq = 1 where tenant_id = %(tenant_id)s and coalesce(%(time)s, now()) > now()",
        "delete from entries where tenant_id = %(tenant_id)s and (seq, body) in ("
        "select seq, body from entries where tenant_id = %(tenant_id)s limit 5)",
    ],
)
def test_form_that_citus_refuses_is_found(statement: str) -> None:
    assert routing(statement).refused


@pytest.mark.parametrize(
    "statement",
    [
        "insert into heads (tenant_id, seq) select %(tenant_id)s, n from unnest(%(numbers)s::int[]) n returning seq",
        "insert into entries as e (tenant_id, seq) select h.tenant_id, h.seq from heads h"
        " where h.tenant_id = %(tenant_id)s returning e.seq",
        "insert into entries (tenant_id, seq) select h.tenant_id, h.seq from heads h"
        " where h.tenant_id = %(tenant_id)s",
        "insert into queue (tenant_id, id) select %(tenant_id)s, n from unnest(%(numbers)s::text[]) n",
        "insert into heads (tenant_id) values (%(tenant_id)s)",
        "delete from entries where tenant_id = %(tenant_id)s and (seq, body) <= (%(seq)s, %(body)s)",
        "delete from entries where tenant_id = %(tenant_id)s"
        " and seq > case when body = 'a' then 1 else 2 end",
        "update heads set seq = coalesce(seq, 1) where tenant_id = %(tenant_id)s and now() > %(time)s",
    ],
)
def test_form_that_citus_runs_is_not_refused(statement: str) -> None:
    assert not routing(statement).refused
