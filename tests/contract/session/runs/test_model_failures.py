"""ReportModelFailures: the watchers of a session get each failure of a model once."""

import asyncio

import pytest
from spawnmesh.session.v1 import model_failure_pb2 as pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_session.domain import model_failures

from tests.support.session.calls import fail
from tests.support.session.harness import Mesh
from tests.support.session.interrupts import held_run, refusal_of
from tests.support.session.watching import watched

LIMITED = pb.ModelFailure(model="p/one", reason="RATE_LIMIT", http_status=429)
SILENT = pb.ModelFailure(model="p/two", reason="TIMEOUT")


async def report(mesh: Mesh, held: run_pb.ClaimedRun, first: int, *failures: pb.ModelFailure) -> int:
    request = pb.ReportModelFailuresRequest(epoch=held.run.epoch, first_number=first, failures=failures)
    return int((await mesh.run(held, mesh.runs.ReportModelFailures, request)).model_failure_count)


async def told(mesh: Mesh, session_id: str) -> list[tuple[str, str]]:
    """Return the run and the detail of each failure that a watcher gets."""
    messages = await watched(mesh, session_id, with_transcript=False, ends_at_newest=True)
    events = [one.session_event for one in messages]
    failed = session_pb2.SESSION_EVENT_KIND_MODEL_FAILED
    return [(event.run_id, event.detail) for event in events if event.kind == failed]


async def test_ReportModelFailures__each_failure_is_an_event_and_a_repeat_adds_nothing(mesh: Mesh) -> None:
    held = await held_run(mesh)
    session_id, run_id = held.session.session_id, held.run.run_id
    assert await report(mesh, held, 1, LIMITED, SILENT) == 2
    assert await report(mesh, held, 1, LIMITED, SILENT) == 2
    assert await report(mesh, held, 2, SILENT, LIMITED) == 3
    assert await report(mesh, held, 5, LIMITED) == 5, "the fourth was lost"
    limited, silent = (run_id, "p/one: RATE_LIMIT (HTTP 429)"), (run_id, "p/two: TIMEOUT")
    assert await told(mesh, session_id) == [limited, silent, limited, limited]
    assert (await mesh.get(session_id)).latest_run.model_failure_count == 5


async def test_ReportModelFailures__of_repeats_at_the_same_time_one_counts(mesh: Mesh) -> None:
    held = await held_run(mesh)
    counts = await asyncio.gather(*(report(mesh, held, 1, LIMITED, SILENT) for _ in range(8)))
    assert set(counts) == {2}
    assert len(await told(mesh, held.session.session_id)) == 2


async def test_ReportModelFailures__a_further_claim_knows_how_many_there_were(mesh: Mesh) -> None:
    held = await held_run(mesh)
    await report(mesh, held, 1, LIMITED)
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    second = await mesh.claim(held.session.session_id)
    assert second.run.model_failure_count == 1
    assert await refusal_of(report(mesh, held, 2, SILENT)) is Reason.RUN_LEASE_LOST
    assert await report(mesh, second, 2, SILENT) == 2
    assert len(await told(mesh, held.session.session_id)) == 2


async def test_ReportModelFailures__a_run_that_has_ended_has_no_further_ones(mesh: Mesh) -> None:
    held = await held_run(mesh)
    await fail(mesh, held)
    assert await refusal_of(report(mesh, held, 1, LIMITED)) is Reason.RUN_LEASE_LOST
    assert await told(mesh, held.session.session_id) == []


async def test_ReportModelFailures__a_run_has_so_many_events_at_most(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_failures, "MAX_EVENTS", 3)
    held = await held_run(mesh)
    assert await report(mesh, held, 1, LIMITED, LIMITED) == 2
    assert await report(mesh, held, 3, SILENT, LIMITED, LIMITED) == 5
    assert await report(mesh, held, 6, LIMITED) == 6
    assert [detail for _, detail in await told(mesh, held.session.session_id)][2:] == ["p/two: TIMEOUT"]


@pytest.mark.parametrize(
    "failure",
    [
        pb.ModelFailure(model="", reason="TIMEOUT"),
        pb.ModelFailure(model="p/\x00", reason="TIMEOUT"),
        pb.ModelFailure(model="p/one", reason="no answer"),
        pb.ModelFailure(model="p/one", reason="TIMEOUT", http_status=1000),
    ],
)
async def test_ReportModelFailures__bad_input_changes_nothing(mesh: Mesh, failure: pb.ModelFailure) -> None:
    held = await held_run(mesh)
    with pytest.raises(MeshError) as caught:
        await report(mesh, held, 1, failure)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert await told(mesh, held.session.session_id) == []
