"""Each statement that notifies names a channel with the suffix of its service."""

import re

from tests.unit.test_house import tracked

_NOTIFIES = re.compile(r"pg_notify\(([^,]*),")
_WITH_SUFFIX = re.compile(
    r"^('\w+'|%\(channel\)s) \|\| ((\w\.)?suffix|\(select suffix from _spawnmesh_channels\))$"
)


def test_no_statement_notifies_a_channel_that_another_service_can_name() -> None:
    names = {
        (file.name, match[1])
        for file in tracked("*.py", "*.sql")
        if file.parts[-4:-3] != ("tests",) and ("services" in file.parts or "libs" in file.parts)
        for match in _NOTIFIES.finditer(file.read_text())
    }
    assert len(names) > 10
    assert {name for name in names if not _WITH_SUFFIX.match(name[1])} == set()
