"""`spawnmesh interrupt` ends a run or sends it a message, and reports what became of the run."""

import json

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_rpc

from tests.support.command.fake_mesh import RUN_ID, SESSION_ID, FakeMesh, mesh, unset

__all__ = ["mesh", "unset"]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (session_pb2.RUN_STATE_INTERRUPTED, f"{RUN_ID} is interrupted\n"),
        (session_pb2.RUN_STATE_RUNNING, f"{RUN_ID} ends at its next safe point\n"),
        (session_pb2.RUN_STATE_SUCCEEDED, f"{RUN_ID} had ended before: SUCCEEDED\n"),
    ],
    ids=["ended", "live", "before"],
)
async def test_interrupt_reports_what_became_of_the_run(
    mesh: FakeMesh, state: session_pb2.RunState.ValueType, said: str
) -> None:
    mesh.sessions.interrupted = session_pb2.Run(run_id=RUN_ID, state=state)

    shown = await mesh.run("interrupt", SESSION_ID, "--run", RUN_ID)
    for_programs = await mesh.run("interrupt", SESSION_ID, "--json")

    assert (shown.exit_code, shown.stdout) == (0, said)
    assert json.loads(for_programs.stdout)["run_id"] == RUN_ID
    first, second = mesh.sessions.requests
    assert first == session_rpc.InterruptRunRequest(session_id=SESSION_ID, run_id=RUN_ID)
    assert second == session_rpc.InterruptRunRequest(session_id=SESSION_ID)


async def test_interrupt_with_a_text_lets_the_run_read_it_next(mesh: FakeMesh) -> None:
    mesh.sessions.interrupted = session_pb2.Run(run_id=RUN_ID, state=session_pb2.RUN_STATE_RUNNING)

    shown = await mesh.run("interrupt", SESSION_ID, "--text", "In French.")

    assert shown.stdout == f"{RUN_ID} reads the message next\n"
    (request,) = mesh.sessions.requests
    assert (request.text, request.run_id) == ("In French.", "")
    assert request.request_id


async def test_interrupt_without_a_run_says_so(mesh: FakeMesh) -> None:
    shown = await mesh.run("interrupt", SESSION_ID)
    for_programs = await mesh.run("interrupt", SESSION_ID, "--json")

    assert shown.stdout == "there is no run\n"
    assert json.loads(for_programs.stdout) == {}


async def test_interrupt_with_an_empty_text_ends_no_run(mesh: FakeMesh) -> None:
    refused = await mesh.run("interrupt", SESSION_ID, "--text", " ")

    assert refused.exit_code == 2
    assert mesh.sessions.requests == []
