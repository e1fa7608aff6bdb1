"""The rules of expand and contract for migrations, which Squawk checks.

A migration expands the schema: each process of the release before runs on it. One that takes
something away is marked with `-- contracts: …`, and `migrate` records that.
"""

import json
import subprocess
import sys
from pathlib import Path

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


def findings(text: str) -> set[str]:
    """Return the names of the rules that the migration breaks."""
    command = [SQUAWK, "--reporter", "json", "--pg-version", "16", "--exclude", ",".join(OPINIONS)]
    if "-- transactional: false" not in text:
        command.append("--assume-in-transaction")
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    found = {one["rule_name"] for one in json.loads(done.stdout)}
    return found - TAKES_AWAY if CONTRACTS.search(text) else found
