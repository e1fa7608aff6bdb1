"""Ids: prefixed, sortable, derived."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_core.ids import IdKind, derived_id, is_id, new_id


@given(st.sampled_from(list(IdKind)))
def test_fresh_id_is_well_formed_and_of_its_kind_only(kind: IdKind) -> None:
    fresh = new_id(kind)
    assert [other for other in IdKind if is_id(other, fresh)] == [kind]


def test_ids_of_one_moment_differ() -> None:
    assert len({new_id(IdKind.RUN) for _ in range(1000)}) == 1000


def test_derived_id_is_the_same_each_time_and_differs_for_each_source_and_kind() -> None:
    one, two = new_id(IdKind.SESSION), new_id(IdKind.SESSION)
    assert derived_id(IdKind.ATTACHMENT_SET, one) == derived_id(IdKind.ATTACHMENT_SET, one)
    assert derived_id(IdKind.ATTACHMENT_SET, one) != derived_id(IdKind.ATTACHMENT_SET, two)
    assert is_id(IdKind.ATTACHMENT_SET, derived_id(IdKind.ATTACHMENT_SET, one))
    assert derived_id(IdKind.RUN, one)[4:] != derived_id(IdKind.ENTRY, one)[4:]


@pytest.mark.parametrize(
    "text",
    ["", "ses_", "ses", "run_01m7y2n4wsqhp7t4ptyq957v0b", "ses_01m7y2n4wsqhp7t4ptyq957v0", "ses_01m7y2n4wsqhp7t4ptyq957v0bb",
     "ses_81m7y2n4wsqhp7t4ptyq957v0b", "ses_01M7Y2N4WSQHP7T4PTYQ957V0B", "ses_01m7y2n4wsqhp7t4ptyq957v0i", "ses_01m7y2n4wsqhp7t4ptyq957v0b\n"],
)  # fmt: skip
def test_malformed_id_is_recognised(text: str) -> None:
    assert not is_id(IdKind.SESSION, text)


def test_ids_sort_by_the_time_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([1_700_000_000_000_000_000, 1_700_000_000_001_000_000, 1_800_000_000_000_000_000])
    monkeypatch.setattr("time.time_ns", lambda: next(moments))
    made = [new_id(IdKind.SESSION) for _ in range(3)]
    assert made == sorted(made)
