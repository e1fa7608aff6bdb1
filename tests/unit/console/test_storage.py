"""The storage of transcripts as it is shown."""

from spawnmesh_console.domain.storage import TranscriptStorage, set_state, sum_of


def transcript(logical: int, stored: int) -> TranscriptStorage:
    return TranscriptStorage("ses_1", 3, 10, logical, stored)


def test_bytes_that_left_the_database_are_those_that_it_does_not_have() -> None:
    assert (transcript(1000, 250).moved_bytes, transcript(1000, 250).moved_share) == (750, "75 %")
    assert (transcript(1000, 1000).moved_bytes, transcript(1000, 1000).moved_share) == (0, "–")
    assert transcript(10, 20).moved_bytes == 0, "two reads that do not fit together are no negative bytes"


def test_a_sum_has_no_session() -> None:
    assert sum_of([transcript(1000, 250), transcript(10, 10)]) == TranscriptStorage("", 6, 20, 1010, 260)
    assert sum_of([]) == TranscriptStorage("", 0, 0, 0, 0)


def test_states_of_sets_differ_in_their_shape() -> None:
    shown = [set_state(state) for state in ("STAGED", "ATTACHED", "RELEASED")]
    assert len({one.icon for one in shown}) == len({one.word for one in shown}) == 3
    assert set_state("NEWER").word == "unknown"
