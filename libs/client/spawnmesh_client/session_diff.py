"""Compare two sessions, such as a fork with the session that it was forked from."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as rpc
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import NotFound

from spawnmesh_client.divergence import CopiedBeginning, Divergence, find_divergence
from spawnmesh_client.entries import entry_view
from spawnmesh_client.pages import pages_of
from spawnmesh_client.view_of import view_of
from spawnmesh_client.views import Entry, ForkPoint
from spawnmesh_client.wire import WireMesh

MAX_ENTRIES = 1000
_LABELS_PAGE = 1000


@dataclass(frozen=True, slots=True)
class SessionDiff:
    """The place where two sessions, A and B, went apart.

    - The first `common_count` entries of both say the same; `common_message_count` of them are
      messages, and `common_seq_a` and `common_seq_b` are the last ones of them, 0 if there are
      none. Headers, changes of the model and labels of accepted answers do not count.
    - `only_a` and `only_b` are the entries behind them. `is_cut_a` and `is_cut_b` are true if there
      are more than were asked for. `superseded` has the ids of the drafts among them that were
      rejected.
    - `forked_at` is the entry of A at which B was forked, or that of B at which A was. If both are
      forks of a third session, it is the first of the two entries of that one.
    - `left_out_count` messages are at the beginning of the source alone: a fork copies only the
      newest messages of a long session.
    - `answer_a` and `answer_b` are the results of the newest runs, empty for a run without one.
    """

    session_id_a: str
    session_id_b: str
    common_count: int
    common_message_count: int
    common_seq_a: int
    common_seq_b: int
    left_out_count: int
    forked_at: ForkPoint | None
    only_a: tuple[Entry, ...]
    only_b: tuple[Entry, ...]
    is_cut_a: bool
    is_cut_b: bool
    superseded: frozenset[str]
    answer_a: str
    answer_b: str

    @property
    def is_equal(self) -> bool:
        """True if both sessions say the same from the beginning to the end."""
        return not (self.only_a or self.only_b or self.is_cut or self.left_out_count)

    @property
    def is_cut(self) -> bool:
        """True if one of the sessions has more entries that are not in the other than were asked
        for.
        """
        return self.is_cut_a or self.is_cut_b


@dataclass(frozen=True, slots=True)
class WireDiff:
    """The same as SessionDiff in the messages of the contracts."""

    a: session_pb2.Session
    b: session_pb2.Session
    forked_at: session_pb2.ForkPoint | None
    found: Divergence

    @property
    def view(self) -> SessionDiff:
        """The same in views."""
        found = self.found
        return SessionDiff(
            session_id_a=self.a.session_id,
            session_id_b=self.b.session_id,
            common_count=found.common_count,
            common_message_count=found.common_message_count,
            common_seq_a=found.common_seq_a,
            common_seq_b=found.common_seq_b,
            left_out_count=found.left_out_count,
            forked_at=None if self.forked_at is None else view_of(ForkPoint, self.forked_at),
            only_a=tuple(map(entry_view, found.only_a)),
            only_b=tuple(map(entry_view, found.only_b)),
            is_cut_a=found.is_cut_a,
            is_cut_b=found.is_cut_b,
            superseded=found.superseded,
            answer_a=self.a.latest_run.result_text,
            answer_b=self.b.latest_run.result_text,
        )


async def diff_sessions(
    wire: WireMesh, session_id_a: str, session_id_b: str, *, max_entries: int = MAX_ENTRIES
) -> WireDiff:
    """Compare two sessions of the tenant. Raises NotFound, and ValueError for a negative limit."""
    if max_entries < 0:
        raise ValueError(f"max_entries is a number of entries, not {max_entries}")
    a, b = await wire.session(session_id_a), await wire.session(session_id_b)
    found = await find_divergence(
        lambda seq: _entries(wire, session_id_a, seq),
        lambda seq: _entries(wire, session_id_b, seq),
        copied=await _copied(wire, a, b),
        max_entries=max_entries,
    )
    return WireDiff(a, b, _forked_at(a, b), found)


async def _entries(wire: WireMesh, session_id: str, after_seq: int) -> AsyncIterator[entry_pb2.Entry]:
    """Yield the entries. A session that exists has none before its transcript is created."""
    is_begun = False
    try:
        async for entry in wire.transcript(session_id, after_seq=after_seq):
            is_begun = True
            yield entry
    except NotFound:
        if is_begun or after_seq:
            raise


async def _copied(wire: WireMesh, a: session_pb2.Session, b: session_pb2.Session) -> CopiedBeginning | None:
    """Return which of the sessions began with a copy of the other one, if one did."""
    for source, copy, source_is_a in ((a, b, True), (b, a, False)):
        if _source_of(copy) == source.session_id:
            superseded = await _superseded(wire, source.session_id)
            return CopiedBeginning(source_is_a, copy.fork.seq, superseded)
    return None


def _source_of(session: session_pb2.Session) -> str:
    """Return the session that it began with a copy of; empty if it did not. A fork without a point
    copies the parent as it is at the spawn.
    """
    if session.HasField("fork"):
        return session.fork.session_id
    return session.parent_session_id if session.context == session_pb2.CONTEXT_MODE_FORK else ""


async def _superseded(wire: WireMesh, session_id: str) -> frozenset[str]:
    """Return the ids of the drafts of a session that were superseded."""
    peer, found = wire.service("transcript"), set()
    labels = entry_pb2.EntryFilter(kinds=[entry_pb2.ENTRY_KIND_LABEL])
    request = rpc.ListEntriesRequest(
        session_id=session_id, after_seq=0, page_size=_LABELS_PAGE, filter=labels
    )
    with suppress(NotFound):  # Its transcript is not created yet.
        async for page in pages_of(peer, TranscriptServiceStub(peer.channel).ListEntries, request):
            for entry in page.entries:
                if entry.body.label.kind == entry_pb2.LABEL_KIND_SUPERSEDED:
                    found.add(entry.body.label.entry_id)
    return frozenset(found)


def _forked_at(a: session_pb2.Session, b: session_pb2.Session) -> session_pb2.ForkPoint | None:
    """Return the entry at which one was forked from the other, or the first one of a third session
    from which both were.
    """
    for source, fork in ((a, b), (b, a)):
        if fork.HasField("fork") and fork.fork.session_id == source.session_id:
            return fork.fork
    if a.HasField("fork") and b.HasField("fork") and a.fork.session_id == b.fork.session_id:
        return min(a.fork, b.fork, key=lambda point: point.seq)
    return None
