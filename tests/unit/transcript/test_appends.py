"""The reason why an append was not made, and the order of the reasons."""

from dataclasses import replace

import pytest
from spawnmesh_transcript.domain.appends import (
    Append,
    AppendOutcome,
    AppendResult,
    AppendState,
    EarlierAppend,
    refuse_append,
)
from spawnmesh_transcript.domain.entries import EntryKind, Head, NewEntry, WriterClaim
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer

HEAD = Head("inc_1", 7, b"hash", "run_1", 3)
THEN = replace(HEAD, seq=5)
EARLIER = EarlierAppend(b"same", 4, ("ent_4", "ent_5"), THEN)
APPEND = Append(
    Key("acme", "ses_1"),
    [NewEntry(EntryKind.CUSTOM, b"x")],
    "key",
    b"same",
    Writer(claim=WriterClaim("run_1", 3)),
    settings_version=2,
)
STATE = AppendState(2, HEAD, None, "")
LOST = replace(APPEND, writer=Writer(claim=WriterClaim("run_1", 2)))


@pytest.mark.parametrize(
    ("append", "state", "expected"),
    [
        (LOST, replace(STATE, settings_version=3, head=None), AppendResult(AppendOutcome.SETTINGS_CHANGED)),
        (LOST, replace(STATE, head=None, earlier=EARLIER), AppendResult(AppendOutcome.NOT_FOUND)),
        (
            replace(LOST, content_hash=b"other"),
            replace(STATE, earlier=EARLIER),
            AppendResult(AppendOutcome.KEY_REUSED),
        ),
        (
            LOST,
            replace(STATE, earlier=EARLIER, missing_entry_id="ent_x"),
            AppendResult(AppendOutcome.REPLAYED, THEN, 4, ("ent_4", "ent_5")),
        ),
        (LOST, replace(STATE, missing_entry_id="ent_x"), AppendResult(AppendOutcome.CLAIM_LOST, HEAD)),
        (
            APPEND,
            replace(STATE, missing_entry_id="ent_x"),
            AppendResult(AppendOutcome.TARGET_NOT_FOUND, HEAD, missing_entry_id="ent_x"),
        ),
        (APPEND, STATE, None),
    ],
    ids=[
        "settings",
        "no transcript",
        "other content",
        "repeated",
        "lost claim",
        "no target",
        "no reason",
    ],
)
def test_the_first_reason_decides(append: Append, state: AppendState, expected: AppendResult | None) -> None:
    assert refuse_append(append, state) == expected


def test_a_writer_without_a_claim_loses_none() -> None:
    unowned = replace(APPEND, writer=Writer(service="session"))
    refused = refuse_append(unowned, replace(STATE, missing_entry_id="ent_x"))
    assert refused
    assert refused.outcome == "TARGET_NOT_FOUND"


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (replace(APPEND, request_id="other"), True),
        (APPEND, False),
        (replace(LOST, request_id="other"), False),
        (replace(APPEND, request_id="other", settings_version=3), False),
        (
            replace(
                APPEND,
                request_id="other",
                entries=[NewEntry(EntryKind.CUSTOM, b"x", target_entry_id="ent_1")],
            ),
            False,
        ),
    ],
    ids=["another key", "one key", "another writer", "other settings", "a reference"],
)
def test_appends_share_a_call_unless_one_of_them_may_be_refused(other: Append, expected: bool) -> None:
    assert (APPEND.can_share_call(other), other.can_share_call(APPEND)) == (expected, expected)
