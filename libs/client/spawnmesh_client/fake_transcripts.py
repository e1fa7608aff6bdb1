"""The transcripts of a FakeMesh: lists, contexts, and what workers write."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from spawnmesh.content.v1.message_pb2 import (
    ROLE_ASSISTANT,
    ROLE_TOOL_RESULT,
    ContentBlock,
    Message,
    Text,
    ToolCall,
)
from spawnmesh.transcript.v1 import live_service_pb2 as live
from spawnmesh.transcript.v1 import transcript_service_pb2 as rpc
from spawnmesh.transcript.v1.entry_pb2 import (
    Entry,
    EntryBody,
    EntryFilter,
    EntryKind,
)
from spawnmesh_core.call_arguments import ArgumentsUnreadable, arguments_of, with_arguments
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.spawn_calls import is_spawn_tool
from spawnmesh_core.spawn_redaction import redact_arguments

from spawnmesh_client.fake_records import SessionRecord
from spawnmesh_client.turn_messages import calls_of, map_calls

_NO_HASH = "0" * 64  # A FakeMesh hashes no entries.
_NO_RESULT = "the result of this call is missing"


class FakeTranscripts:
    """Answer the calls about transcripts. `look` returns the record of a session."""

    def __init__(self, look: Callable[[str], SessionRecord]) -> None:
        self._look = look
        self._appends: dict[tuple[str, str], tuple[bytes, list[Entry]]] = {}

    async def ListEntries(self, request: rpc.ListEntriesRequest, _token: str) -> rpc.ListEntriesResponse:
        entries = self._look(request.session_id).entries
        size, is_down = request.page_size or 100, request.WhichOneof("direction") == "before_seq"
        start = int(request.page_token or (request.before_seq if is_down else request.after_seq))
        if is_down:
            before = [one for one in entries if start == 0 or one.seq < start]
            found = [one for one in before if _is_wanted(one, request.filter)]
            page = found[-size:]
            following = page[0].seq if len(found) > size else 0
        else:
            found = [one for one in entries if one.seq > start and _is_wanted(one, request.filter)]
            page = found[:size]
            following = page[-1].seq if len(found) > size else 0
        token = str(following) if following else ""
        return rpc.ListEntriesResponse(
            entries=page, head=rpc.Head(seq=len(entries)), next_page_token=token
        )  # fmt: skip

    async def AcquireWriter(
        self, request: rpc.AcquireWriterRequest, _token: str
    ) -> rpc.AcquireWriterResponse:
        record = self._written(request.session_id, request.claim)
        return rpc.AcquireWriterResponse(head=rpc.Head(seq=len(record.entries)))

    async def ReleaseWriter(
        self, request: rpc.ReleaseWriterRequest, _token: str
    ) -> rpc.ReleaseWriterResponse:
        return rpc.ReleaseWriterResponse(head=rpc.Head(seq=len(self._look(request.session_id).entries)))

    async def AppendEntries(
        self, request: rpc.AppendEntriesRequest, _token: str
    ) -> rpc.AppendEntriesResponse:
        """Append entries as a run. The content of files in calls that spawn is redacted."""
        key = request.session_id, request.request_id
        payload = b"".join(one.SerializeToString(deterministic=True) for one in request.entries)
        known, appended = self._appends.get(key, (payload, []))
        if known != payload:
            raise MeshError(
                Reason.REQUEST_ID_REUSED,
                f"request_id {request.request_id!r} was used before with another payload; draw a new one",
                facts={"request_id": request.request_id},
            )
        if not appended:
            record = self._written(request.session_id, request.claim)
            if request.HasField("fence"):
                _check_window(record, request.claim, request.fence)
            for body in request.entries:
                entry = record.add_entry(_redacted(body))
                entry.writer.run_id, entry.writer.epoch = request.claim.run_id, request.claim.epoch
                appended.append(entry)
            self._appends[key] = payload, appended
        places = [rpc.AppendedEntry(entry_id=one.entry_id, seq=one.seq) for one in appended]
        return rpc.AppendEntriesResponse(entries=places)

    async def OpenWindow(self, request: rpc.OpenWindowRequest, _token: str) -> rpc.OpenWindowResponse:
        record = self._written(request.session_id, request.claim)
        opened = rpc.OpenWindowResponse(fence=_fence(record))
        if request.HasField("context"):
            opened.context.CopyFrom(await self.AssembleContext(request.context, _token))
        return opened

    async def CloseWindow(self, request: rpc.CloseWindowRequest, _token: str) -> rpc.CloseWindowResponse:
        record = self._written(request.session_id, request.claim)
        _check_window(record, request.claim, request.fence)
        return rpc.CloseWindowResponse(fence=_fence(record))

    async def AssembleContext(
        self, request: rpc.AssembleContextRequest, _token: str
    ) -> rpc.AssembleContextResponse:
        """Return all messages and notes, whatever the budget. Tokens are words."""
        entries = [
            one
            for one in self._look(request.session_id).entries
            if one.body.WhichOneof("kind") in ("message", "system_note")
        ]
        paired = _paired(entries)
        words = sum(len(block.text.text.split()) for one in paired for block in one.body.message.content)
        return rpc.AssembleContextResponse(entries=paired, token_count=words)

    async def WriteDraft(self, _request: live.WriteDraftRequest, _token: str) -> live.WriteDraftResponse:
        return live.WriteDraftResponse()  # The entry has all deltas of it.

    def _written(self, session_id: str, claim: rpc.WriterClaim) -> SessionRecord:
        """Return the record. Raises WRITER_CLAIM_LOST for a claim that is not of its worker."""
        record = self._look(session_id)
        if (claim.run_id, claim.epoch) != (record.session.latest_run.run_id, record.session.latest_run.epoch):
            raise MeshError(
                Reason.WRITER_CLAIM_LOST,
                "another runner writes this transcript",
                facts={"head_seq": len(record.entries)},
            )
        return record


def _fence(record: SessionRecord) -> rpc.Fence:
    return rpc.Fence(incarnation="fake", seq=len(record.entries), chain_hash=_NO_HASH)


def _check_window(record: SessionRecord, claim: rpc.WriterClaim, fence: rpc.Fence) -> None:
    for entry in record.entries[fence.seq :]:
        is_own = entry.writer.run_id == claim.run_id
        if not is_own or entry.body.message.role not in (ROLE_ASSISTANT, ROLE_TOOL_RESULT):
            raise MeshError(
                Reason.SESSION_TAKEOVER,
                f"entry {entry.seq} is not of this run",
                facts={"offending_seq": entry.seq, "cause": "KIND" if is_own else "FOREIGN_WRITER"},
            )


def _is_wanted(entry: Entry, wanted: EntryFilter) -> bool:
    kind = entry.body.WhichOneof("kind") or "header"
    name = "NOTE" if kind == "system_note" else kind.upper()
    is_kind = not wanted.kinds or EntryKind.Value(f"ENTRY_KIND_{name}") in wanted.kinds
    return is_kind and (not wanted.roles or entry.body.message.role in wanted.roles)


def _paired(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with each result behind its call, and an error for a missing one."""
    results = {
        one.body.message.tool_call_id: one
        for one in entries
        if one.body.message.role == ROLE_TOOL_RESULT
    }  # fmt: skip
    paired: list[Entry] = []
    for entry in entries:
        if entry.body.message.role == ROLE_TOOL_RESULT:
            continue
        paired.append(entry)
        paired += [results.get(call.tool_call_id) or _missing(call) for call in calls_of(entry.body.message)]
    return paired


def _missing(call: ToolCall) -> Entry:
    message = Message(
        role=ROLE_TOOL_RESULT, content=[ContentBlock(text=Text(text=_NO_RESULT))],
        tool_call_id=call.tool_call_id, tool_name=call.name, is_error=True,
    )  # fmt: skip
    return Entry(body=EntryBody(message=message))


def _redacted(body: EntryBody) -> EntryBody:
    kept = EntryBody()
    kept.CopyFrom(body)
    if kept.HasField("message"):
        kept.message.CopyFrom(map_calls(kept.message, _without_content))
    return kept


def _without_content(call: ToolCall) -> ToolCall:
    if not is_spawn_tool(call.name):
        return call
    try:
        arguments: Any = json.loads(redact_arguments(json.dumps(arguments_of(call.block_json))))
    except ArgumentsUnreadable:
        return call
    block_json = with_arguments(call.block_json, arguments)
    return ToolCall(tool_call_id=call.tool_call_id, name=call.name, block_json=block_json)
