"""The prompt window: the run itself wrote what a transcript got while it was open."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from spawnmesh_transcript.domain.chain import chain_hash
from spawnmesh_transcript.domain.entries import EntryKind, Head, WriterClaim
from spawnmesh_transcript.domain.prompt_window import (
    Fence,
    Offence,
    TakeoverCause,
    WindowEntry,
    entry_offence,
    fence_offence,
    head_offence,
)
from spawnmesh_transcript.domain.turns import Role

CLAIM = WriterClaim("run_1", 3)
BEFORE = b"b" * 32


def _linked(previous: bytes, entry: WindowEntry) -> WindowEntry:
    """Return the entry with its chain hash behind an entry of the hash `previous`."""
    return entry._replace(chain_hash=chain_hash(previous, entry))


NOTE = WindowEntry(
    seq=5,
    entry_id="ent_5",
    parent_entry_id="ent_4",
    kind=EntryKind.NOTE,
    role=None,
    writer_run_id="",
    writer_epoch=0,
    writer_service="session",
    writer_client="",
    create_time=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    chain_hash=b"",
    body=b"note",
    dropped_bytes=0,
)
AT_FENCE = _linked(BEFORE, NOTE)
HASH = AT_FENCE.chain_hash
FENCE = Fence("inc_1", 5, HASH)
HEAD = Head("inc_1", 5, HASH, "run_1", 3)
NEXT = NOTE._replace(
    seq=6,
    entry_id="ent_6",
    parent_entry_id="ent_5",
    kind=EntryKind.MESSAGE,
    role=Role.ASSISTANT,
    writer_run_id="run_1",
    writer_epoch=3,
    writer_service="",
    body=b"body",
    is_canonical=True,
)
MIRROR = NEXT._replace(
    kind=EntryKind.MIRROR, role=None, writer_run_id="", writer_epoch=0, writer_client="chat"
)


@pytest.mark.parametrize("head", [HEAD, replace(HEAD, seq=6, chain_hash=b"other")])
def test_transcript_that_still_has_the_fence_holds(head: Head) -> None:
    assert fence_offence(FENCE, head, BEFORE, AT_FENCE) is None


@pytest.mark.parametrize(
    ("head", "at_fence", "offence"),
    [
        (
            replace(HEAD, incarnation="inc_2"),
            AT_FENCE,
            Offence(1, EntryKind.HEADER, TakeoverCause.INCARNATION),
        ),
        (replace(HEAD, seq=3), AT_FENCE, Offence(4, None, TakeoverCause.SHRUNK)),
        (HEAD, None, Offence(5, None, TakeoverCause.SHRUNK)),
        (HEAD, AT_FENCE._replace(seq=6), Offence(5, None, TakeoverCause.SHRUNK)),
        (HEAD, AT_FENCE._replace(chain_hash=b"other"), Offence(5, EntryKind.NOTE, TakeoverCause.REWRITTEN)),
        (HEAD, AT_FENCE._replace(body=b"other"), Offence(5, EntryKind.NOTE, TakeoverCause.REWRITTEN)),
        (HEAD, AT_FENCE._replace(writer_client="x"), Offence(5, EntryKind.NOTE, TakeoverCause.REWRITTEN)),
    ],
)
def test_transcript_without_the_fence_does_not_hold(
    head: Head, at_fence: WindowEntry | None, offence: Offence
) -> None:
    assert fence_offence(FENCE, head, BEFORE, at_fence) == offence


@pytest.mark.parametrize(
    "entry",
    [*(NEXT._replace(role=role) for role in (Role.ASSISTANT, Role.TOOL_RESULT, Role.BASH_EXECUTION)), MIRROR],
)
def test_replies_and_results_of_the_run_and_mirrors_of_clients_hold(entry: WindowEntry) -> None:
    assert entry_offence(FENCE, _linked(HASH, entry), CLAIM) is None


@pytest.mark.parametrize(
    ("entry", "cause"),
    [
        (NEXT._replace(is_canonical=False), TakeoverCause.NOT_CANONICAL),
        (NEXT._replace(writer_run_id="run_2"), TakeoverCause.FOREIGN_WRITER),
        (NEXT._replace(writer_epoch=2), TakeoverCause.FOREIGN_WRITER),
        (MIRROR._replace(writer_client=""), TakeoverCause.FOREIGN_WRITER),
        (MIRROR._replace(writer_run_id="run_2"), TakeoverCause.FOREIGN_WRITER),
        (MIRROR._replace(writer_run_id="run_1", writer_epoch=3), TakeoverCause.KIND),
        (MIRROR._replace(is_canonical=False), TakeoverCause.NOT_CANONICAL),
        (NEXT._replace(kind=EntryKind.NOTE), TakeoverCause.KIND),
        (NEXT._replace(role=Role.USER), TakeoverCause.KIND),
        (NEXT._replace(role=None), TakeoverCause.KIND),
    ],
)
def test_entry_that_the_run_did_not_write_does_not_hold(entry: WindowEntry, cause: TakeoverCause) -> None:
    assert entry_offence(FENCE, _linked(HASH, entry), CLAIM) == Offence(6, entry.kind, cause)


def test_entry_that_does_not_continue_the_chain_does_not_hold() -> None:
    entry = _linked(HASH, NEXT)
    for changed in (
        entry._replace(body=b"other"),
        entry._replace(entry_id="ent_7"),
        entry._replace(parent_entry_id="ent_4"),
        entry._replace(writer_service="session"),
        entry._replace(create_time=datetime(2026, 1, 2, 3, 4, 5, 678902, UTC)),
        entry._replace(writer_client="chat"),
        _linked(BEFORE, NEXT),
    ):
        assert entry_offence(FENCE, changed, CLAIM) == Offence(6, entry.kind, TakeoverCause.REWRITTEN)


@pytest.mark.parametrize("seq", [5, 7])
def test_entry_that_is_not_the_next_shows_a_gap(seq: int) -> None:
    assert entry_offence(FENCE, NEXT._replace(seq=seq), CLAIM) == Offence(6, None, TakeoverCause.SHRUNK)


@pytest.mark.parametrize(
    ("head", "offence"),
    [
        (HEAD, None),
        (replace(HEAD, seq=6), Offence(6, None, TakeoverCause.SHRUNK)),
        (replace(HEAD, chain_hash=b"other"), Offence(5, None, TakeoverCause.REWRITTEN)),
    ],
)
def test_window_reaches_the_head(head: Head, offence: Offence | None) -> None:
    assert head_offence(FENCE, head) == offence
