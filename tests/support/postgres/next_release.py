"""A next release of the services: their code with more migrations, which it uses."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

import psycopg
from spawnmesh_devstack.members import SERVICES, snake
from spawnmesh_devstack.stack import Stack

ROOT = Path(__file__).resolve().parents[3]
STEPS = ("spawned_by_next", "claimed_by_next", "finalized_by_next")
"""Columns of `runs` that the next release adds, and sets in these steps."""

# The statements of the session service that take the steps, as far as the next release changes them.
_EDITS = (
    (r"insert into runs \((tenant_id.*?)select n\.tenant_id", r"insert into runs (spawned_by_next, \1select true, n.tenant_id"),
    (r"update runs set (state = 'RUNNING', epoch = claim\.last_epoch,)", r"update runs set claimed_by_next = true, \1"),
    (r"update runs set (state = %\(state\)s,)", r"update runs set finalized_by_next = true, \1"),
)  # fmt: skip


class NextRelease:
    """The code in a folder of its own. `variables` let a process run it."""

    def __init__(self, folder: Path, stack: Stack) -> None:
        self.variables = {"PYTHONPATH": str(folder)}
        for service in SERVICES:
            package = f"spawnmesh_{snake(service)}"
            shutil.copytree(ROOT / "services" / service / package, folder / package)
            for number, text in enumerate(_expansions(stack, snake(service)), 2):
                (folder / package / "migrations" / f"{number:04}_next.sql").write_text(text)
        _edit(folder / "spawnmesh_session" / "store" / "runs.sql")

    async def migrate(self, stack: Stack, service: str) -> str:
        """Migrate as the command of the next release does, which the hook of the chart runs."""
        schema = snake(service)
        program = (
            "import sys; from spawnmesh_postgres.migrations import run_migrate_command;"
            f"run_migrate_command(sys.argv[1], package='spawnmesh_{schema}', schema='{schema}')"
        )
        done = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stack.databases[schema].owner, env={**os.environ, **self.variables},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        printed, _ = await done.communicate()
        assert done.returncode == 0, printed.decode()
        return printed.decode()


def _expansions(stack: Stack, schema: str) -> list[str]:
    """Return migrations that add a column to each table, and a table.

    Each locks one table: one that locked several could meet a running transaction in a deadlock.
    """
    with psycopg.connect(stack.databases[schema].owner) as connection:
        tables = connection.execute(
            "select tablename from pg_tables where schemaname = %s and tablename !~ 'yoyo|^_' order by 1",
            (schema,),
        ).fetchall()
    assert len(tables) > 2
    texts = [
        f"alter table {name} add column added_by_next text not null default 'none';\n" for (name,) in tables
    ]
    if schema == "session":
        flags = [f"add column {step} boolean not null default false" for step in STEPS]
        texts.append(f"alter table runs {', '.join(flags)};\n")
    texts.append(
        "create table next_notes (tenant_id text, note_id text, primary key (tenant_id, note_id));\n"
    )
    return texts


def _edit(file: Path) -> None:
    text = file.read_text()
    for pattern, replacement in _EDITS:
        text, count = re.subn(pattern, replacement, text, flags=re.DOTALL)
        assert count == 1, f"{file.name}: {pattern} matches {count} times"
    file.write_text(text)
