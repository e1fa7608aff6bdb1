"""Permissions of writers."""

import pytest
from spawnmesh_transcript.domain.entries import EntryKind, NewEntry, WriterClaim
from spawnmesh_transcript.domain.turns import Role
from spawnmesh_transcript.domain.writers import (
    UNOWNED_APPEND,
    Unowned,
    Writer,
    may_append,
    unowned_of_client,
    unowned_of_service,
)

RUN = Writer(claim=WriterClaim("run_1", 3))
SESSION = Writer(service="session", unowned=unowned_of_service("session"))
MIRRORING = Writer(client="chat", unowned=unowned_of_client([UNOWNED_APPEND]))
OTHERS = [
    EntryKind.HEADER,
    EntryKind.LABEL,
    EntryKind.MODEL_CHANGE,
    EntryKind.COMPACTION,
    EntryKind.BRANCH_SUMMARY,
    EntryKind.CUSTOM,
    EntryKind.OPAQUE,
]


def entry(kind: EntryKind, role: Role | None = None) -> NewEntry:
    return NewEntry(kind, b"", role=role)


def test_session_service_may_append_user_messages_and_notes() -> None:
    assert unowned_of_service("session") == {Unowned.USER_MESSAGE, Unowned.NOTE}
    assert unowned_of_service("hook") == frozenset()


def test_client_needs_the_permission_for_mirrors() -> None:
    assert unowned_of_client(["other", UNOWNED_APPEND]) == {Unowned.MIRROR}
    assert unowned_of_client(["other"]) == frozenset()


@pytest.mark.parametrize("kind", EntryKind)
def test_run_appends_everything_but_mirrors(kind: EntryKind) -> None:
    assert may_append(RUN, entry(kind)) is (kind is not EntryKind.MIRROR)


@pytest.mark.parametrize(
    ("writer", "kind", "role", "allowed"),
    [
        (SESSION, EntryKind.NOTE, None, True),
        (SESSION, EntryKind.MESSAGE, Role.USER, True),
        (SESSION, EntryKind.MESSAGE, Role.ASSISTANT, False),
        (SESSION, EntryKind.MESSAGE, None, False),
        (SESSION, EntryKind.MIRROR, None, False),
        (MIRRORING, EntryKind.MIRROR, None, True),
        (MIRRORING, EntryKind.NOTE, None, False),
        (MIRRORING, EntryKind.MESSAGE, Role.USER, False),
        (Writer(), EntryKind.MIRROR, None, False),
        (Writer(), EntryKind.NOTE, None, False),
        (Writer(), EntryKind.MESSAGE, Role.USER, False),
        *((writer, kind, None, False) for writer in (SESSION, MIRRORING) for kind in OTHERS),
    ],
)
def test_writer_without_a_claim_appends_only_its_own_kinds(
    writer: Writer, kind: EntryKind, role: Role | None, allowed: bool
) -> None:
    assert may_append(writer, entry(kind, role)) is allowed
