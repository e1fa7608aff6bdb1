"""AppendEntries.

Appends all entries or none, durably before the response, with dense seqs in the given order.
"""

import asyncio
from dataclasses import replace

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import MeshError, invalid, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller, CallerKind

from spawnmesh_transcript.domain.appends import Append, AppendOutcome, AppendResult
from spawnmesh_transcript.domain.entries import Head
from spawnmesh_transcript.domain.large_results import Stub
from spawnmesh_transcript.domain.refusals import claim_lost, request_id_reused, unowned_append_not_allowed
from spawnmesh_transcript.domain.writers import (
    UNOWNED_APPEND,
    Writer,
    may_append,
    unowned_of_client,
    unowned_of_service,
)
from spawnmesh_transcript.operations.bodies.prepare import prepare_entries
from spawnmesh_transcript.operations.stub_creation import create_stubs
from spawnmesh_transcript.operations.window_check import moved_fence
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_claim, parse_fence, parse_key, render_head
from spawnmesh_transcript.store import appends as append_store

UPLOAD_WAIT_SECONDS = 5.0
"""The wait of a committed append for the upload of its large results."""

_ATTEMPTS = 5  # Each failed attempt means that the settings changed meanwhile.


async def append_entries(
    request: pb.AppendEntriesRequest, caller: Caller, deps: Dependencies
) -> pb.AppendEntriesResponse:
    """Append all entries or none; they are durable on return.

    Raises INVALID_REQUEST and ATTACHMENT_CONTENT_IS_MARKER for entries that cannot be stored,
    NOT_FOUND for the transcript or the target of an entry, REQUEST_ID_REUSED,
    WRITER_CLAIM_LOST, SESSION_TAKEOVER for a window that did not hold, UNOWNED_APPEND_NOT_ALLOWED,
    what `CpuWorkers.run` raises, and CONFLICT if the tenant's settings or the head keep changing.
    """
    key, request_id = parse_key(request.session_id, caller), request.request_id
    for _ in range(_ATTEMPTS):
        prepared, stubs = await prepare_append(request, caller, deps)
        append = await _close_window(prepared, deps)
        if isinstance(append, AppendResult):
            return _render(append, session_id=key.session_id, request_id=request_id)
        if stubs:
            result = await append_store.append_waiting(deps.database, append, stubs)
        else:
            result = await deps.append_queue.append(append)
        if result.outcome is AppendOutcome.HEAD_MOVED:
            continue  # Something came between the check of the window and the append.
        if result.outcome is not AppendOutcome.SETTINGS_CHANGED:
            if any(stub.files for stub in stubs) and result.is_committed:
                upload = deps.uploader.start(key)
                if any(stub.files and stub.body is not None for stub in stubs):
                    await asyncio.wait([upload], timeout=UPLOAD_WAIT_SECONDS)
            response = _render(result, session_id=key.session_id, request_id=request_id)
            deps.notifier.transcript_changed(key)
            return response
        await deps.policies.refresh(key.tenant_id)  # The entries were prepared by an old version.
    raise MeshError(Reason.CONFLICT, "the tenant's settings or the transcript keep changing; append again")


async def _close_window(append: Append, deps: Dependencies) -> Append | AppendResult:
    """Return the append at the head, if its window holds or if it has none.

    Return the result of an append that was made before, whatever came since. Raises what
    `moved_fence` raises.
    """
    claim, fence = append.writer.claim, append.fence
    if claim is None or fence is None:
        return append
    try:
        return replace(append, fence=await moved_fence(deps.database, deps.blobs, append.key, claim, fence))
    except MeshError:
        repeated = await append_store.find_repeated(deps.database, append)
        if repeated is None:
            raise
        return repeated


async def prepare_append(
    request: pb.AppendEntriesRequest, caller: Caller, deps: Dependencies
) -> tuple[Append, list[Stub]]:
    """Return the append under the settings of now, and the stubs of its entries.

    Raises what AppendEntries raises for a request that no transcript can take.
    """
    key = parse_key(request.session_id, caller)
    request_id, writer = _parse_request_id(request), _parse_writer(request, caller)
    if writer.claim is None and (request.HasField("fence") or request.release_writer):
        raise invalid("claim", "is missing: only a claim has a window to close, and can be released")
    policy = deps.policies.get(key.tenant_id)
    prepared = await prepare_entries(deps.workers, key.tenant_id, request.entries, policy)
    for entry in prepared.entries:
        if not may_append(writer, entry):
            raise unowned_append_not_allowed(
                f"this writer may not append an entry of kind {entry.kind} this way"
            )
    append = Append(
        key,
        prepared.entries,
        request_id,
        prepared.content_hash,
        writer,
        policy.settings_version,
        fence=parse_fence(request.fence) if request.HasField("fence") else None,
        releases_writer=request.release_writer,
    )
    stubs = await create_stubs(deps.database, deps.blobs, deps.workers, key, prepared.entries, policy)
    return append, stubs


def _parse_request_id(request: pb.AppendEntriesRequest) -> str:
    if "\x00" in request.request_id:
        raise invalid("request_id", "has a NUL character")
    return request.request_id


def _parse_writer(request: pb.AppendEntriesRequest, caller: Caller) -> Writer:
    """Return the writer.

    Raises UNOWNED_APPEND_NOT_ALLOWED for a run without a claim, and for a client without the
    permission.
    """
    claim = parse_claim(request.claim, caller) if request.HasField("claim") else None
    match caller.kind:
        case CallerKind.RUN if claim is None:
            raise unowned_append_not_allowed("a run appends with its claim")
        case CallerKind.CLIENT:
            unowned = unowned_of_client(caller.permissions)
            if not unowned:
                raise unowned_append_not_allowed(
                    f"a client needs a token with the permission {UNOWNED_APPEND}"
                )
            return Writer(client=caller.subject, unowned=unowned)
        case _:
            return Writer(claim=claim, service=caller.service, unowned=unowned_of_service(caller.service))


def _render(result: AppendResult, *, session_id: str, request_id: str) -> pb.AppendEntriesResponse:
    match result.outcome, result.head:
        case AppendOutcome.APPENDED | AppendOutcome.REPLAYED, Head() as head:
            return pb.AppendEntriesResponse(
                entries=[
                    pb.AppendedEntry(entry_id=entry_id, seq=seq)
                    for seq, entry_id in enumerate(result.entry_ids, start=result.first_seq)
                ],
                head=render_head(head),
                replayed=result.outcome is AppendOutcome.REPLAYED,
            )
        case AppendOutcome.CLAIM_LOST, Head() as head:
            raise claim_lost(head)
        case AppendOutcome.KEY_REUSED, _:
            raise request_id_reused(request_id)
        case AppendOutcome.TARGET_NOT_FOUND, _:
            raise not_found("entry", result.missing_entry_id)
        case _:
            raise not_found("transcript", session_id)
