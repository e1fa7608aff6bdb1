"""The mesh in memory, as the tests of a program use it."""

import asyncio
import hashlib
from io import BytesIO
from pathlib import Path

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh_client import (
    AlreadyExists,
    Attachment,
    EventKind,
    FailedPrecondition,
    InvalidRequest,
    Mesh,
    NotFound,
    Reason,
    ResourceExhausted,
    RunFailed,
    RunNotDone,
    RunState,
    SessionMode,
    Unimplemented,
    sync,
)
from spawnmesh_client.testing import FakeMesh


async def test_runs_end_in_the_order_of_the_script_and_then_with_done() -> None:
    mesh = FakeMesh()
    mesh.answers("one", lambda task: task.upper())
    assert isinstance(mesh, Mesh)
    assert [(await mesh.run("two")).text for _ in range(3)] == ["one", "TWO", "done"]


async def test_run_that_the_script_fails_raises_its_reason() -> None:
    mesh = FakeMesh()
    mesh.fails("MODEL_REFUSED", "no")
    session = await mesh.spawn("Work.")
    with pytest.raises(RunFailed) as failed:
        await session.result()
    assert (failed.value.reason, failed.value.message, failed.value.state) == (
        "MODEL_REFUSED",
        "no",
        "FAILED",
    )
    assert (await session.refresh()).latest_run is not None


async def test_held_run_is_not_done_until_it_is_finished() -> None:
    mesh = FakeMesh()
    mesh.holds()
    session = await mesh.spawn("Work.", mode=SessionMode.SESSION)
    with pytest.raises(RunNotDone) as late:
        await session.result(timeout=0)
    assert late.value.state == "RUNNING"
    waiting = asyncio.create_task(session.result(timeout=60))
    run = await session.send("Also this.")
    mesh.finish(session.session_id, "at last")
    result = await waiting
    assert (result.text, result.run.run_id) == ("at last", run.run_id)
    said = [entry.text for entry in [one async for one in session.transcript()] if entry.role == "USER"]
    assert said == ["Work.", "Also this."]
    with pytest.raises(ValueError, match="no run that is held"):
        mesh.finish(session.session_id, "again")


async def test_interrupted_run_ends_and_the_session_goes_on() -> None:
    mesh = FakeMesh()
    mesh.holds()
    session = await mesh.spawn("Work.", mode=SessionMode.SESSION)
    await session.send("Also this.")
    first = await session.interrupt()
    assert first is not None
    assert (first.state, first.interrupt_time is not None) == (RunState.INTERRUPTED, True)
    with pytest.raises(RunFailed) as ended:
        await session.result()
    assert (ended.value.reason, ended.value.state) == ("INTERRUPTED", "INTERRUPTED")
    assert await session.interrupt() == first
    mesh.holds()
    second = await session.send("And that.")
    assert await session.interrupt(run_id=first.run_id) == first
    mesh.finish(session.session_id, "done")
    latest = await session.interrupt(run_id=second.run_id)
    assert latest is not None
    assert (latest.state, latest.interrupt_time) == (RunState.SUCCEEDED, None)
    said = [entry.text for entry in [one async for one in session.transcript()] if entry.role == "USER"]
    assert said == ["Work.", "Also this.", "And that."]


async def test_interrupt_with_a_text_is_a_message() -> None:
    mesh = FakeMesh()
    mesh.holds()
    session = await mesh.spawn("Work.", mode=SessionMode.SESSION)
    run = await session.interrupt("In French.", request_id="r")
    assert run is not None
    assert (run.state, run.interrupt_time) == (RunState.RUNNING, None)
    assert (await session.send("In French.", request_id="r")).run_id == run.run_id
    with pytest.raises(AlreadyExists):
        await session.interrupt("In Latin.", request_id="r")
    mesh.finish(session.session_id, "fini")
    said = [entry.text for entry in [one async for one in session.transcript()] if entry.role == "USER"]
    assert said == ["Work.", "In French."]
    with pytest.raises(FailedPrecondition) as ended:
        await session.interrupt("More.", run_id=run.run_id)
    assert (ended.value.reason, ended.value.facts["state"]) == (Reason.RUN_STATE, "SUCCEEDED")
    again = await session.interrupt("More.")
    assert again is not None
    assert again.run_id != run.run_id


async def test_session_for_one_run_closes_with_its_interrupted_run() -> None:
    mesh = FakeMesh()
    mesh.holds()
    session = await mesh.spawn("Work.")
    with pytest.raises(NotFound):
        await session.interrupt(run_id="run_1")
    with pytest.raises(InvalidRequest):
        await session.interrupt(" ")
    await session.interrupt()
    assert [event.kind async for event in session.events()][-1] is EventKind.CLOSED
    with pytest.raises(FailedPrecondition, match="SESSION_CLOSED"):
        await session.interrupt("More.")


async def test_next_call_is_refused_once() -> None:
    mesh = FakeMesh()
    mesh.refuses(Reason.RUN_QUEUE_FULL, "full", retry_after_seconds=2, limit=10)
    with pytest.raises(ResourceExhausted) as full:
        await mesh.spawn("Work.")
    assert (full.value.retry_after_seconds, full.value.facts) == (2, {"limit": "10"})
    assert (await mesh.run("Work.")).text == "done"


async def test_spawns_are_there_to_assert_on() -> None:
    mesh = FakeMesh()
    await mesh.spawn("Read.", label="night", model="a/b", attachments=[Attachment("a.txt", b"hello")])
    (spawned,) = mesh.spawned
    assert (spawned.task, spawned.label, spawned.model) == ("Read.", "night", "a/b")
    assert (spawned.agent_id, spawned.files) == ("default", {"a.txt": b"hello"})


@pytest.mark.parametrize(
    ("task", "options", "field"),
    [
        (" ", {}, "task"),
        ("x", {"label": "x" * 257}, "label"),
        ("x", {"run_timeout": 0}, "run_timeout"),
        ("x", {"run_timeout": 100_000}, "run_timeout"),
        ("x", {"request_id": "x" * 129}, "request_id"),
    ],
    ids=["task", "label", "zero-timeout", "long-timeout", "request-id"],
)
async def test_arguments_are_checked_by_the_rules_of_the_contract(
    task: str, options: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await FakeMesh().spawn(task, **options)  # type: ignore[arg-type]
    assert [one.field for one in refused.value.violations] == [field]


async def test_session_id_that_is_none_is_invalid_and_an_unknown_one_not_found() -> None:
    mesh = FakeMesh()
    with pytest.raises(InvalidRequest):
        await mesh.session("run_1")
    session = await mesh.spawn("Work.")
    await session.delete()
    with pytest.raises(NotFound):
        await session.refresh()


async def test_files_large_and_small_come_back_from_their_set(tmp_path: Path) -> None:
    mesh = FakeMesh()
    large = bytes(range(256)) * 8192
    files = [Attachment("small.txt", b"hello"), Attachment("large.bin", BytesIO(large))]
    session = await mesh.spawn("Read.", attachments=files, cleanup="KEEP")
    assert session.receipt is not None
    assert [(one.name, one.size_bytes) for one in session.receipt.files] == [
        ("small.txt", 5),
        ("large.bin", len(large)),
    ]
    [found] = [one async for one in mesh.files.sets(session_id=session.session_id)]
    assert found.files[1].sha256 == hashlib.sha256(large).hexdigest()
    assert (await mesh.files.download(found.set_id, "large.bin", tmp_path)).read_bytes() == large
    with pytest.raises(NotFound):
        await mesh.files.download(found.set_id, "other", tmp_path)


async def test_call_that_the_fake_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(Unimplemented, match=r"FakeMesh has no .*ListPlugins"):
        await FakeMesh().plugins.list()


async def test_views_do_not_change_with_the_session() -> None:
    mesh = FakeMesh()
    session = await mesh.spawn("Work.")
    assert session.latest_run is not None
    assert session.latest_run.state == "QUEUED"
    await session.result()
    assert session.latest_run.state == "QUEUED"
    message = await mesh.wire.spawn("Work.")
    await mesh.session(message.session_id)
    assert message.latest_run.state == session_pb2.RUN_STATE_QUEUED


def test_blocking_methods_work_on_it_too() -> None:
    fake = FakeMesh()
    fake.answers("42")
    with sync.blocking(fake) as mesh:
        session = mesh.spawn("Work.")
        assert session.result().text == "42"
        assert [event.kind for event in session.events()][-1] is EventKind.CLOSED
        with pytest.raises(FailedPrecondition):
            session.send("More.")
