"""Each statement that notifies names a channel with the suffix of its service."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

_NOTIFIES = re.compile(r"pg_notify\(([^,]*),")
_WITH_SUFFIX = re.compile(
    r"^('\w+'|%\(channel\)s) \|\| ((\w\.)?suffix|\(select suffix from _spawnmesh_channels\))$"
)


def test_no_statement_notifies_a_channel_that_another_service_can_name() -> None:
    names = {
        (file.name, match[1])
        for folder in ("services", "libs")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".sql")
        for match in _NOTIFIES.finditer(file.read_text())
    }
    assert len(names) > 10
    assert {name for name in names if not _WITH_SUFFIX.match(name[1])} == set()
