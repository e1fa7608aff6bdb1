"""Drafts: their keys, and which draft may still become the answer."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_session.domain.drafts import (
    Draft,
    decided_text_key_of,
    is_answer,
    require_current,
    require_decided_text,
    require_open,
)
from spawnmesh_session.domain.runs import Run, RunState

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RUN = Run(
    run_id="run_1",
    session_id="ses_1",
    state=RunState.RUNNING,
    epoch=3,
    first_epoch=1,
    attempt_count=1,
    draft_entry_id="",
    decided_entry_id="",
    decided_text_key="",
    result_text="",
    error_reason="",
    error_message="",
    usage={},
    revision_count=0,
    deadline_time=NOW,
    queue_time=NOW,
    first_queue_time=NOW,
    start_time=NOW,
    end_time=None,
)
DRAFT = Draft("run_1", epoch=3, entry_id="ent_1", text="42", usage={})
TEXT_KEY = f"ent_1:{hashlib.sha256(b'42').hexdigest()}"


def test_keys_name_the_text_and_the_question() -> None:
    assert DRAFT.text_key == TEXT_KEY
    assert DRAFT.dispatch_request_id == f"run_1:{TEXT_KEY}:00"
    assert replace(DRAFT, has_final_effects=True).dispatch_request_id == f"run_1:{TEXT_KEY}:10"
    assert replace(DRAFT, is_last_turn=True).dispatch_request_id == f"run_1:{TEXT_KEY}:01"


@pytest.mark.parametrize(
    ("state", "draft_entry_id", "answer"),
    [
        (RunState.SUCCEEDED, "ent_1", True),
        (RunState.SUCCEEDED, "ent_2", False),
        (RunState.FINALIZING, "ent_1", False),
    ],
)
def test_draft_is_the_answer_of_the_run_that_succeeded_with_it(
    state: RunState, draft_entry_id: str, answer: bool
) -> None:
    assert is_answer(replace(RUN, state=state, draft_entry_id=draft_entry_id), DRAFT) is answer


def test_decided_text_is_the_one_of_this_draft() -> None:
    decided = replace(RUN, decided_entry_id="ent_1", decided_text_key=TEXT_KEY)
    assert decided_text_key_of(decided, DRAFT) == TEXT_KEY
    assert decided_text_key_of(decided, replace(DRAFT, entry_id="ent_2")) == ""


@pytest.mark.parametrize(
    "draft",
    [
        pytest.param(DRAFT, id="the same text"),
        pytest.param(replace(DRAFT, text="masked", offered_key=TEXT_KEY), id="masked since it was offered"),
        pytest.param(replace(DRAFT, entry_id="ent_2"), id="another draft"),
    ],
)
def test_decided_text_may_be_offered_again(draft: Draft) -> None:
    require_decided_text(replace(RUN, decided_entry_id="ent_1", decided_text_key=TEXT_KEY), draft)


def test_other_text_for_a_decided_draft_is_refused() -> None:
    decided = replace(RUN, decided_entry_id="ent_1", decided_text_key=TEXT_KEY)
    with pytest.raises(MeshError) as caught:
        require_decided_text(decided, replace(DRAFT, text="43"))
    assert caught.value.reason is Reason.RUN_STATE
    assert caught.value.facts == {"run_id": "run_1", "draft_entry_id": "ent_1"}


@pytest.mark.parametrize(
    ("state", "decided_entry_id"),
    [
        (RunState.RUNNING, ""),
        (RunState.RUNNING, "ent_2"),
        (RunState.FINALIZING, ""),
        (RunState.FINALIZING, "ent_1"),
    ],
)
def test_run_is_open_for_the_draft_it_is_being_ended_with(state: RunState, decided_entry_id: str) -> None:
    require_open(replace(RUN, state=state, decided_entry_id=decided_entry_id), DRAFT)


def test_run_that_is_being_ended_with_another_draft_is_not_open() -> None:
    run = replace(RUN, state=RunState.FINALIZING, decided_entry_id="ent_2")
    with pytest.raises(MeshError) as caught:
        require_open(run, DRAFT)
    assert caught.value.reason is Reason.RUN_STATE
    assert caught.value.facts == {"run_id": "run_1", "draft_entry_id": "ent_2"}


def test_run_at_another_epoch_is_not_open() -> None:
    with pytest.raises(MeshError) as caught:
        require_open(RUN, replace(DRAFT, epoch=2))
    assert caught.value.reason is Reason.RUN_LEASE_LOST


def test_superseded_draft_is_refused_by_its_name() -> None:
    require_current(replace(RUN, superseded_entry_ids=("ent_2",)), DRAFT)
    with pytest.raises(MeshError) as caught:
        require_current(replace(RUN, superseded_entry_ids=("ent_2", "ent_1")), DRAFT)
    assert caught.value.reason is Reason.RUN_STATE
    assert caught.value.facts == {"run_id": "run_1", "draft_entry_id": "ent_1"}
