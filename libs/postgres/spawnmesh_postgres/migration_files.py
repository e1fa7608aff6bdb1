"""The migrations that a package carries, and what each of them asks of the processes that run on its outcome."""

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

_CONTRACTS = re.compile(r"^-- contracts\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MigrationFile:
    """One migration. `contracts` is true for one that takes away what processes from before it need: they do not run on its outcome.

    Such a file says so in a line `-- contracts: …` and comes a release after the one that stopped to need what it takes away.
    """

    migration_id: str
    sha256: str
    contracts: bool


def migration_files(package: str) -> tuple[MigrationFile, ...]:
    """The package's `migrations/*.sql` by name. The hash does not depend on how lines end."""
    found = []
    for file in (files(package) / "migrations").iterdir():
        if file.name.endswith(".sql"):
            text = "\n".join(file.read_text(encoding="utf-8").splitlines())
            digest = hashlib.sha256(text.encode()).hexdigest()
            found.append(MigrationFile(file.name.removesuffix(".sql"), digest, _CONTRACTS.search(text) is not None))
    return tuple(sorted(found, key=lambda one: one.migration_id))
