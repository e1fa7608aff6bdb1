"""The context that a model would read of a session's transcript."""

from spawnmesh.transcript.v1 import context_pb2 as context_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_client.client import Mesh

from spawnmesh_console.clients.shown_entry import shown_entry
from spawnmesh_console.domain.context_bar import ContextPart
from spawnmesh_console.domain.context_view import ContextItem, LeftOutRange, ShownContext

_SECONDS = 30.0
_FRESH_TOKENS, _FRESH_SHARE = 24_000, 4  # The fresh tail that a run of the mesh asks for.
_CAUSE = "DROP_CAUSE_"


async def read_context(
    mesh: Mesh, session_id: str, *, token_budget: int, model: str, system_prompt: str, up_to_seq: int
) -> ShownContext:
    """Assemble the context as a run would get it now, or got it when the transcript ended at a seq.

    Without a model, the stored counts are used. The schemas of tools are not counted: runners alone
    know them. Raises NotFound, and InvalidRequest for a seq beyond the end.
    """
    peer = mesh.wire.service("transcript")
    fresh_token_count = min(_FRESH_TOKENS, max(1, token_budget // _FRESH_SHARE))
    request = pb.AssembleContextRequest(
        session_id=session_id,
        token_budget=token_budget,
        model=model,
        accompanying_texts=[system_prompt] if system_prompt else (),
        fresh_tail=context_pb.FreshTail(token_count=fresh_token_count),
        up_to_seq=up_to_seq,
    )
    stub = TranscriptServiceStub(peer.channel)
    return _shown_context(await peer.unary(stub.AssembleContext, request, timeout_seconds=_SECONDS))


def _shown_context(response: pb.AssembleContextResponse) -> ShownContext:
    stubbed = {one.seq: one for one in response.stubbed}
    cut = {one.seq: one for one in response.cut}
    items = [
        _item(entry, stubbed.get(entry.seq), cut.get(entry.seq), response.fresh_seq)
        for entry in response.entries
    ]
    return ShownContext(
        items=tuple(item for item in items if item is not None),
        token_count=response.token_count,
        system_token_count=response.accompanying_token_count,
        dropped_count=response.dropped_entry_count,
        superseded_count=response.superseded_entry_count,
        left_out=tuple(
            LeftOutRange(one.first_seq, one.last_seq, one.entry_count, _cause_of(one))
            for one in response.dropped
        ),
        is_estimate=response.is_estimate,
        vocabulary=response.token_vocabulary,
        is_compaction_due=response.compaction_due,
    )


def _item(
    entry: entry_pb2.Entry,
    stubbed: context_pb.StubbedResult | None,
    cut: context_pb.CutResult | None,
    fresh_seq: int,
) -> ContextItem | None:
    shown = shown_entry(entry)
    if shown is None:
        return None
    replaced = cut or stubbed
    return ContextItem(
        shown,
        part=_part(entry, is_stubbed=stubbed is not None, is_cut=cut is not None),
        token_count=entry.token_count,
        full_token_count=entry.token_count if replaced is None else replaced.full_token_count,
        is_fresh=bool(entry.entry_id) and entry.seq >= fresh_seq,
        file_ids=() if replaced is None else tuple(replaced.file_ids),
    )


def _part(entry: entry_pb2.Entry, *, is_stubbed: bool, is_cut: bool) -> ContextPart:
    if not entry.entry_id:
        return ContextPart.STAND_IN
    if entry.body.HasField("compaction"):
        return ContextPart.SUMMARY
    if is_cut:
        return ContextPart.CUT
    return ContextPart.STUBBED if is_stubbed else ContextPart.WHOLE


def _cause_of(dropped: context_pb.DroppedEntries) -> str:
    value = context_pb.DropCause.DESCRIPTOR.values_by_number.get(dropped.cause)
    return "" if value is None else value.name.removeprefix(_CAUSE)
