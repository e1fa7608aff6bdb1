"""The migration files of a package, with their checksums."""

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

CHECKSUMS = "_yoyo_checksum"
"""The table with the checksums of the applied migrations, beside the table of yoyo."""

CONTRACTS = re.compile(r"^-- contracts\b", re.MULTILINE)
"""The mark of a migration that removes something that earlier releases need."""


@dataclass(frozen=True, slots=True)
class MigrationFile:
    """A migration.

    `contracts` is true if it removes something that earlier releases need: they cannot run after
    it. Such a file has a line `-- contracts: …`. It comes a release after the one that stopped
    needing what it removes.
    """

    migration_id: str
    sha256: str
    contracts: bool


def migration_files(package: str) -> tuple[MigrationFile, ...]:
    """Return the package's `migrations/*.sql` by name.

    The checksum does not depend on line endings.
    """
    found = []
    for file in (files(package) / "migrations").iterdir():
        if file.name.endswith(".sql"):
            text = "\n".join(file.read_text(encoding="utf-8").splitlines())
            digest = hashlib.sha256(text.encode()).hexdigest()
            found.append(
                MigrationFile(file.name.removesuffix(".sql"), digest, CONTRACTS.search(text) is not None)
            )
    return tuple(sorted(found, key=lambda one: one.migration_id))
