"""The prompt window: the run itself wrote what a transcript got while it was open."""

import hashlib
from dataclasses import replace

import pytest
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
HASH = b"h" * 32
FENCE = Fence("inc_1", 5, HASH)
HEAD = Head("inc_1", 5, HASH, "run_1", 3)
AT_FENCE = WindowEntry(5, EntryKind.NOTE, None, "", 0, "", HASH, b"", 0)
NEXT = WindowEntry(
    6,
    EntryKind.MESSAGE,
    Role.ASSISTANT,
    "run_1",
    3,
    "",
    hashlib.sha256(HASH + b"body").digest(),
    b"body",
    0,
    is_canonical=True,
)
MIRROR = NEXT._replace(
    kind=EntryKind.MIRROR, role=None, writer_run_id="", writer_epoch=0, writer_client="chat"
)


@pytest.mark.parametrize("head", [HEAD, replace(HEAD, seq=6, chain_hash=b"other")])
def test_transcript_that_still_has_the_fence_holds(head: Head) -> None:
    assert fence_offence(FENCE, head, AT_FENCE) is None


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
    ],
)
def test_transcript_without_the_fence_does_not_hold(
    head: Head, at_fence: WindowEntry | None, offence: Offence
) -> None:
    assert fence_offence(FENCE, head, at_fence) == offence


@pytest.mark.parametrize(
    "entry",
    [*(NEXT._replace(role=role) for role in (Role.ASSISTANT, Role.TOOL_RESULT, Role.BASH_EXECUTION)), MIRROR],
)
def test_replies_and_results_of_the_run_and_mirrors_of_clients_hold(entry: WindowEntry) -> None:
    assert entry_offence(FENCE, entry, CLAIM) is None


@pytest.mark.parametrize(
    ("entry", "cause"),
    [
        (NEXT._replace(body=b"other"), TakeoverCause.REWRITTEN),
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
    assert entry_offence(FENCE, entry, CLAIM) == Offence(6, entry.kind, cause)


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
