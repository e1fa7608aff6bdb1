"""Prompt windows: other writers' entries break them, the runner's own do not."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_client.turn_messages import text_message
from spawnmesh_core.ids import IdKind, new_id

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import TENANT, ScriptedMesh
from tests.support.transcript.bodies import mirror, note, superseded, text_of, user
from tests.support.transcript.fixtures import Service, Session
from tests.support.waiting import eventually

USER, ASSISTANT = message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT
LIST = ("c1", "list_files", "{}")


@asynccontextmanager
async def while_the_model_thinks(mesh: ScriptedMesh) -> AsyncIterator[None]:
    """Run the block between the request to the model and its answer."""
    assert mesh.hold_model is not None
    await eventually(mesh.model_called.is_set)
    yield
    mesh.hold_model.set()


def texts(messages: list[message_pb2.Message]) -> list[str]:
    return ["".join(block.text.text for block in message.content) for message in messages]


async def test_AppendEntries__an_answer_to_an_older_transcript_is_discarded(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.answers.extend([saying("Stale."), saying("Fresh.")])
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        async with while_the_model_thinks(mesh):
            mesh.store(entry_pb2.EntryBody(message=text_message(USER, "Stop, do that.")))
        await eventually(lambda: mesh.finalized)
    assert texts(mesh.messages(ASSISTANT)) == ["Fresh."]
    assert texts(list(mesh.prompts[1].messages)) == ["Do it.", "Stop, do that."]
    assert mesh.finalized is not None
    assert mesh.finalized.usage.output_token_count == 4, "what was discarded was paid for"
    assert mesh.failed is None


@pytest.mark.parametrize("leaves_a_trace", [True, False])
async def test_AppendEntries__a_replaced_writer_appends_nothing(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, leaves_a_trace: bool
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.answers.append(saying("Unheard."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        async with while_the_model_thinks(mesh):
            mesh.writer_epoch = 7
            if leaves_a_trace:
                mesh.store(entry_pb2.EntryBody(message=saying("Theirs.")), mesh.run_id, 7)
        await eventually(lambda: not list(tmp_path.iterdir()))
    assert "Unheard." not in texts(mesh.messages(ASSISTANT))
    assert (mesh.failed, mesh.finalized, mesh.released, len(mesh.prompts)) == (None, None, [], 1)


async def test_OpenWindow__precedes_every_prompt(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.inbox = [run_pb.InboxMessage(key="m1", text="News.")]
    mesh.answers.extend([calling(LIST), saying("Done.")])
    mesh.queue_run(tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    assert mesh.window_seqs == [2, 4], "behind the inbox, and behind the results"
    assert mesh.closed_window_count == len(mesh.prompts) == 2


async def test_AppendEntries__a_transcript_that_changes_every_time_uses_up_the_turns(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.on_generate = lambda: mesh.store(entry_pb2.EntryBody(message=text_message(USER, "And that.")))
    mesh.answers.extend([saying("Stale.")] * 3)
    mesh.queue_run(max_turns=3)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.failed)
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_TURN_LIMIT_EXCEEDED
    assert (len(mesh.prompts), mesh.messages(ASSISTANT)) == (3, [])


class RealTranscript:
    """The scripted session as the transcript service sees it."""

    def __init__(self, mesh: ScriptedMesh, service: Service) -> None:
        self.session = Session(service, TENANT, mesh.session_id)
        self.claim = pb.WriterClaim(run_id=mesh.run_id, epoch=1)

    async def revise(self, request: run_pb.FinalizeRunRequest) -> None:
        """Append what the session service appends, in the run's name, when it rejects a draft."""
        entries = [superseded(request.draft_entry_id), note("Be shorter.")]
        await self.session.append(entries, claim=self.claim, token=self.session.service_token())


async def test_AppendEntries__a_runners_own_entries_never_break_the_window(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, service: Service
) -> None:
    real = RealTranscript(mesh, service)
    await real.session.create()
    await real.session.append([user("Do it.")])
    mesh.inbox = [
        run_pb.InboxMessage(key=f"message:v1:{number}", text=f"News {number}.") for number in range(3)
    ]
    mesh.hold_model = asyncio.Event()
    revise = run_pb.FinalizeRunResponse(
        revise=run_pb.Revision(instruction="Be shorter.", number=1, max_revision_count=3)
    )
    mesh.outcomes.extend(
        [revise, run_pb.FinalizeRunResponse(messages_pending=run_pb.MessagesPending(count=1)), revise]
    )
    mesh.on_revise = real.revise
    mesh.answers.extend(
        [
            calling(LIST, ("c2", "list_files", "{}")),
            calling(("c1", "read_file", json.dumps({"path": "missing"}))),
            *(saying(f"Draft {number}.") for number in range(2)),
            calling(LIST),
            saying("Short."),
        ]
    )
    mesh.queue_run(tools=("list_files", "read_file"))
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    async with running_runner(mesh, keys, tmp_path, tracer=tracer, transcript_target=service.target):
        async with while_the_model_thinks(mesh):
            mesh.inbox.append(run_pb.InboxMessage(key="message:v1:late", text="Late news."))
            await real.session.append([mirror("Delivered.")], token=real.session.mirror_token())
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    assert len(mesh.prompts) == 6, "an answer that was discarded would have been asked for again"
    appends = _client_spans(exporter, "AppendEntries")
    statuses = {span.attributes["rpc.response.status_code"] for span in appends if span.attributes}
    assert statuses == {"OK"}
    said = [
        text_of(entry)
        for entry in await real.session.entries()
        if entry.body.message.role == ASSISTANT and text_of(entry)
    ]
    assert said == ["Draft 0.", "Draft 1.", "Short."]
    assert "Late news." in [
        text_of(entry) for entry in await real.session.entries() if entry.body.message.role == USER
    ]


def _client_spans(exporter: InMemorySpanExporter, method: str) -> list[ReadableSpan]:
    return [
        span for span in exporter.get_finished_spans() if span.name.endswith(f"TranscriptService/{method}")
    ]


async def test_AppendEntries__a_real_takeover_stops_the_runner(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, service: Service
) -> None:
    real = RealTranscript(mesh, service)
    await real.session.create()
    await real.session.append([user("Do it.")])
    mesh.hold_model = asyncio.Event()
    mesh.answers.append(saying("Unheard."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path, transcript_target=service.target):
        async with while_the_model_thinks(mesh):
            other = await real.session.acquire(2, run_id=new_id(IdKind.RUN))
            await real.session.append([entry_pb2.EntryBody(message=saying("Theirs."))], claim=other)
        await eventually(lambda: not list(tmp_path.iterdir()))
    assert [text_of(entry) for entry in await real.session.entries(after_seq=1)] == ["Do it.", "Theirs."]
    assert (mesh.failed, mesh.finalized) == (None, None)
