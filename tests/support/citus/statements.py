"""Every named statement of the services, with each of the forms that Python gives it."""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from spawnmesh_hook.store import deliveries, retention
from spawnmesh_postgres.statements import named_statements
from spawnmesh_postgres.tenant_tables import (
    count_statement,
    deletion_statement,
    page_statement,
    row_deletion_statement,
    version_statement,
)
from spawnmesh_session.domain.sessions import SessionOrder
from spawnmesh_session.store import approvals
from spawnmesh_session.store.session_lists import ListSource, list_statement
from spawnmesh_transcript.store import appends

from tests.support.citus.shards import Schema, schema_of

_SETTINGS = ("attachment_tenants", "tenant_policies", "tenants")
SERVICES = ("session", "attachment_blob", "transcript", "model_router", "hook")


@cache
def schema(service: str) -> Schema:
    """Return the tables that the migrations of a service create."""
    migrations = (files(f"spawnmesh_{service}") / "migrations").iterdir()
    return schema_of(file.read_text() for file in sorted(migrations, key=lambda file: file.name))


def statements() -> Iterator[tuple[str, str, str]]:
    """Return every statement, also those over the tables of tenants: service, name and text."""
    for service in SERVICES:
        for name, text in _of(files(f"spawnmesh_{service}") / "store"):
            yield service, name, text
        if "purged_tenants" in schema(service).distributed:
            shared = (files("spawnmesh_postgres") / "tenant_purges.sql").read_text()
            for name, text in named_statements(shared).items():
                yield service, name, text
        audit = (files("spawnmesh_postgres") / "audit" / "store.sql").read_text()
        for name, text in named_statements(audit).items():
            yield service, name, text
        if "jobs" in schema(service).local:
            jobs = (files("spawnmesh_postgres") / "jobs" / "store.sql").read_text()
            for name, text in named_statements(jobs).items():
                yield service, name, text
        if "operations" in schema(service).distributed:
            operations = (files("spawnmesh_postgres") / "long_running" / "store.sql").read_text()
            for name, text in named_statements(operations).items():
                yield service, name, text
        for name, text in _over_tables(schema(service)):
            yield service, name, text


def _over_tables(schema: Schema) -> Iterator[tuple[str, str]]:
    for table in schema.distributed & schema.keys.keys():
        columns = schema.keys[table][1:]
        made = {"count": count_statement(table)}
        if table in _SETTINGS:
            made["version"] = version_statement(table)
        if columns:
            made |= {"page": page_statement(table, columns), "delete": deletion_statement(table, columns)}
        else:
            made["delete"] = row_deletion_statement(table)
        for name, statement in made.items():
            yield f"{name} {table}", statement.as_string()


def _of(folder: Traversable) -> Iterator[tuple[str, str]]:
    for file in folder.iterdir():
        if not file.name.endswith(".sql"):
            continue
        for name, text in named_statements(file.read_text()).items():
            if "-- A fragment of" in text or "\nset transaction" in text:
                continue
            if "{state}" in text:
                yield from ((f"{name} {needs}", appends._statement(needs)) for needs in _all_needs())
            elif "{narrowest}" in text:
                narrowest = ("", *deliveries.NARROWEST_FIRST)
                yield from ((f"{name} {one}", deliveries.list_statement(one)) for one in narrowest)
            elif name == "list_approvals":
                for only in (True, False):
                    yield f"{name} {only}", approvals.list_statement(only_pending=only)
            elif "{source}" in text:
                orders = [(source, order) for source in ListSource for order in SessionOrder]
                yield from ((f"{name} {one}", list_statement(name, *one)) for one in orders)
            elif "{table}" in text:
                yield from ((f"{name} {one}", retention.deletion_of(one)) for one in retention.TIMES)
            else:
                yield name, text


def _all_needs() -> list[appends._Need]:
    """Every combination, also none, except that only a single append of a caller closes a window or
    ends a claim. Iterating over the class yields single flags.
    """
    of_one_append = appends._Need.FENCE | appends._Need.RELEASE
    others = appends._Need.SEVERAL_APPENDS | appends._Need.IMPORT | appends._Need.CREATION
    every = (appends._Need(bits) for bits in range(1 << len(appends._Need)))
    return [needs for needs in every if not (needs & of_one_append and needs & others)]
