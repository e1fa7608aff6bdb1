"""The rules of expand and contract for migrations, most of which Squawk checks.

A migration expands the schema: each process of the release before runs on it. One that takes
something away is marked with `-- contracts: …`, and `migrate` records that. A transaction that
locked several tables could meet a running one in a deadlock.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pglast import ast, parse_sql
from pglast.enums import ObjectType
from pglast.visitors import Visitor
from spawnmesh_postgres.migration_files import CONTRACTS

SQUAWK = Path(sys.executable).parent / "squawk"
OPINIONS = (
    # `migrate` sets both for its session.
    "require-lock-timeout",
    "require-statement-timeout",
    # Not about what runs beside the migration.
    "prefer-bigint-over-int",
    "ban-create-domain-with-constraint",
)
"""Rules of Squawk that say nothing of a rolling upgrade here."""
TAKES_AWAY = {
    "ban-drop-column",
    "ban-drop-table",
    "ban-drop-view",
    "ban-drop-type",
    "ban-drop-function",
    "ban-drop-schema",
    "ban-drop-constraint",
    "renaming-column",
    "renaming-table",
    "renaming-object",
    "changing-column-type",
    "adding-not-nullable-field",
    "adding-required-field",
}
"""Rules whose finding a process of an earlier release does not survive."""


READERS = (ast.SelectStmt, ast.ViewStmt)
"""Statements whose locks stop no process."""


WRITERS = (ast.InsertStmt, ast.UpdateStmt, ast.DeleteStmt)


class _Tables(Visitor):
    """The tables of a statement."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_RangeVar(self, _ancestors: Any, node: Any) -> None:
        self.names.add(node.relname)


def locked_tables(text: str) -> set[str]:
    """Return the tables that the migration locks and does not make."""
    made, used = set[str](), _Tables()
    for one in parse_sql(text):
        statement = one.stmt
        if isinstance(statement, ast.CreateStmt):
            made.add(statement.relation.relname)
        if isinstance(statement, ast.DropStmt) and statement.removeType is ObjectType.OBJECT_TABLE:
            used.names.update(name[-1].sval for name in statement.objects)
        if isinstance(statement, WRITERS):
            used.names.add(statement.relation.relname)
        elif not isinstance(statement, READERS):
            used(statement)
    return used.names - made


def findings(text: str) -> set[str]:
    """Return the names of the rules that the migration breaks."""
    several = {"several-tables"} if is_transaction(text) and len(locked_tables(text)) > 1 else set()
    command = [SQUAWK, "--reporter", "json", "--pg-version", "16", "--exclude", ",".join(OPINIONS)]
    if is_transaction(text):
        command.append("--assume-in-transaction")
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    found = {one["rule_name"] for one in json.loads(done.stdout)}
    return several | (found - TAKES_AWAY if CONTRACTS.search(text) else found)


def is_transaction(text: str) -> bool:
    """Return whether the statements of the migration are one transaction."""
    return "-- transactional: false" not in text
