"""Which claim may become the current one."""

import pytest
from spawnmesh_transcript.domain.entries import Head, WriterClaim
from spawnmesh_transcript.domain.writers import is_current, supersedes

HEAD = Head("inc_1", 7, b"hash", "run_1", 3)


@pytest.mark.parametrize(
    ("claim", "may_become", "current"),
    [
        (WriterClaim("run_2", 4), True, False),
        (WriterClaim("run_1", 3), True, True),
        (WriterClaim("run_2", 3), False, False),
        (WriterClaim("run_1", 2), False, False),
    ],
    ids=["a higher epoch", "the same claim", "another run", "a lower epoch"],
)
def test_a_claim_needs_a_higher_epoch_or_to_be_the_current_one(
    claim: WriterClaim, may_become: bool, current: bool
) -> None:
    assert (supersedes(claim, HEAD), is_current(claim, HEAD)) == (may_become, current)
