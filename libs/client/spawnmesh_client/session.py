"""A session as the client saw it last, with the calls that are about it."""

import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import EllipsisType

from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1 import search_service_pb2 as search_rpc

from spawnmesh_client.attachment_uploads import OnProgress, no_progress
from spawnmesh_client.budget_views import SessionBudget, SessionUsage, budget_view, usage_view
from spawnmesh_client.budgets import changed_budget, get_usage, update_budget
from spawnmesh_client.entries import entry_view
from spawnmesh_client.live import LiveEvent, live_events, session_events
from spawnmesh_client.outcomes import Result, RunFailed, RunNotDone
from spawnmesh_client.outputs import OutputSet, list_outputs, save_outputs
from spawnmesh_client.transcript_files import search_entries
from spawnmesh_client.view_of import view_of
from spawnmesh_client.views import (
    Deleted,
    Entry,
    Run,
    RunState,
    SearchHit,
    SessionEvent,
    SessionFields,
)
from spawnmesh_client.wire import WireMesh


@dataclass(frozen=True, slots=True)
class Session(SessionFields):
    """A session. The fields do not change: `refresh` returns the session as it is now.

    It stays usable until its mesh is closed, and several tasks may use it at once.
    """

    _wire: WireMesh = field(repr=False, compare=False)

    async def result(self, timeout: float | None = None) -> Result:
        """Wait for the newest run and return its result; without a timeout, as long as it takes.

        The wait continues after a restart of the service. Raises RunFailed if the run ended without
        an answer, and RunNotDone after `timeout` seconds, while the run goes on.
        """
        answer = await self._wire.wait(self.session_id, math.inf if timeout is None else timeout)
        ended = session_view(answer.session, self._wire)
        run = ended.latest_run
        if not answer.done:
            if run is None:
                raise RunNotDone(ended.session_id, "", None)
            waits_for = (run.approval_id, run.budget_session_id)
            raise RunNotDone(ended.session_id, run.run_id, run.state, *waits_for)
        if run is not None and run.state is RunState.SUCCEEDED:
            return Result(run.result_text, run.usage, run)
        raise RunFailed(
            (run and run.error_reason) or ended.failure_reason or ended.state.value,
            run.error_message if run is not None else "",
            state=run.state if run is not None else ended.state,
            run_id=_run_id(ended),
            session_id=ended.session_id,
            trace_id=ended.trace_id,
        )

    async def events(self, *, after: int = 0, wait: bool = True) -> AsyncIterator[SessionEvent]:
        """Yield the events with a number after this one, each once and in order, until the session
        has ended; without `wait`, until the newest one.

        It continues after a restart of the service, and gives up after a minute without an answer.
        To continue in another program, pass the `number` of the last event.
        """
        watched = session_events(self._wire, self.session_id, after, ends_at_newest=not wait)
        async with aclosing(watched) as events:
            async for event in events:
                yield event

    async def live(
        self, *, after: str = "", after_event: int = 0, after_seq: int = 0, with_descendants: bool = False
    ) -> AsyncGenerator[LiveEvent, None]:
        """Yield the events, the text of answers while models give them, and the entries of the
        transcript, each once and in order, until the session has ended.

        - The text of a draft is followed by the entry that has exactly this text, or by
          `DraftRetracted`. A tenant that masks secrets has no drafts, only entries.
        - The end of a run, and that of the session, comes behind all entries before it.
        - Without a cursor, it begins behind the event and the entry that are named, or with the
          first ones.
        - With descendants, it yields the same of each session below this one, until all have ended.
          `session_id` says of which. That of a session begins behind its CHILD_SPAWNED; there is no
          other order between two sessions.
        - It continues after restarts of services, and gives up after a minute without an answer. To
          continue in another program, pass the `cursor` of the last event. Close the generator to
          end it early.

        Raises NotFound when the session is deleted, and InvalidRequest for a text that is no cursor
        of such a watch of this session.
        """
        events = live_events(
            self._wire,
            self.session_id,
            after,
            after_event=after_event,
            after_seq=after_seq,
            with_descendants=with_descendants,
        )
        async with aclosing(events):
            async for event in events:
                yield event

    async def send(self, text: str, *, request_id: str | None = None) -> Run:
        """Send a message and return the run that will read it.

        The same `request_id` again changes nothing. Raises FailedPrecondition SESSION_CLOSED.
        """
        return view_of(Run, await self._wire.send(self.session_id, text, request_id=request_id))

    async def interrupt(
        self, text: str = "", *, run_id: str = "", request_id: str | None = None
    ) -> Run | None:
        """Stop the live run, or the run that is named, and leave the session open.

        - Without a text, the run ends as INTERRUPTED at its next safe point, and what it has said
          stays in the transcript. A session of mode RUN closes with it. Until then the returned run
          has an `interrupt_time`. If the run has ended before, or none is live, nothing changes:
          the run is returned as it is, or None if the session never had one. Name the run if a
          repeat must not meet a later one.
        - With a text, the run goes on: it stops its turn and reads this message next. The run that
          will read it is returned. The same `request_id` again changes nothing.

        Raises NotFound if the session has no such run, and Conflict if the run takes long to end
        with its answer. With a text, also FailedPrecondition SESSION_CLOSED, or RUN_STATE if the
        named run is not live.
        """
        answer = await self._wire.interrupt(self.session_id, text, run_id=run_id, request_id=request_id)
        return view_of(Run, answer.run) if answer.HasField("run") else None

    async def kill(self) -> int:
        """End the session and its descendants, and return the number of killed runs."""
        return (await self._wire.kill(self.session_id)).killed_run_count

    async def archive(self) -> int:
        """Archive the ended session and its descendants, and return their number."""
        return (await self._wire.archive(self.session_id)).archived_session_count

    async def delete(self) -> Deleted:
        """Kill and delete the session and its descendants, with transcripts and files."""
        return view_of(Deleted, await self._wire.delete(self.session_id))

    async def refresh(self) -> "Session":
        """Return the session as it is now."""
        return session_view(await self._wire.session(self.session_id), self._wire)

    async def children(self) -> AsyncIterator["Session"]:
        """Yield the children of the session, newest first."""
        async for child in self._wire.sessions(
            filter=f"parent_session_id = {self.session_id}", view=session_pb2.SESSION_VIEW_FULL
        ):
            yield session_view(child, self._wire)

    async def usage(self) -> SessionUsage:
        """Return what the session and its descendants have used, and the budgets that they share.

        Runs that have not ended count in the budgets only.
        """
        return usage_view(await get_usage(self._wire.service("session"), self.session_id))

    async def set_budget(
        self,
        *,
        cost: float | Decimal | EllipsisType | None = ...,
        tokens: int | EllipsisType | None = ...,
        calls: int | EllipsisType | None = ...,
        run_time: timedelta | float | EllipsisType | None = ...,
        wait: timedelta | float | EllipsisType | None = ...,
        etag: str = "",
    ) -> SessionBudget:
        """Change the limits that are given, and return the budget. They are as in `Budget`.

        None removes a limit. Runs that wait for the budget go on within a second if there is room.
        With the `SessionBudget.etag` that the change is based on, no other change is overwritten.

        Raises FailedPrecondition BUDGET_MISSING if the session was spawned without a budget, and
        BUDGET_BELOW_USAGE for a limit below what is used; Conflict ETAG_DIFFERS; and ValueError
        without a limit, and for one that is 0 or negative.
        """
        limits = {"cost": cost, "tokens": tokens, "calls": calls, "run_time": run_time, "wait": wait}
        budget, paths = changed_budget(limits)
        peer = self._wire.service("session")
        return budget_view(await update_budget(peer, self.session_id, budget, paths, etag=etag))

    async def outputs(self, *, run_id: str = "") -> AsyncIterator[OutputSet]:
        """Yield the files that runs of the session have published, or one run, in the order in
        which they were published.

        `mesh.files.download(published.set_id, name)` downloads one of them, and
        `mesh.spawn(…, attachments=published.references())` hands them to another session.
        """
        async for one in list_outputs(self._wire.service("session"), self.session_id, run_id=run_id):
            yield view_of(OutputSet, one)

    async def save_outputs(
        self,
        directory: str | Path,
        *,
        run_id: str = "",
        overwrite: bool = False,
        on_progress: OnProgress = no_progress,
    ) -> list[Path]:
        """Download the published files of the session, or of one run, into the directory, and
        return their paths.

        - The newest file of a name is saved under this name. An earlier file of the same name with
          other bytes is saved in a directory below, which is named as its set: `att_…`. A file
          whose own name begins as the id of a set does is saved there, too.
        - Each file appears complete and with the recorded hash, or not at all. A file that is there
          with these bytes stays as it is, so that a repeat downloads only what is new.
        - The directory is created if its parent exists. The names are those that the agent chose,
          so give it a directory of its own.

        Raises FileExistsError, before the first download, if a file is there with other bytes,
        unless it may overwrite; other OSErrors; and FailedPrecondition ATTACHMENT_SET_STATE if
        files were released, after all others are saved.
        """
        saved = await save_outputs(
            self._wire, self.session_id, Path(directory),
            run_id=run_id, overwrite=overwrite, on_progress=on_progress,
        )  # fmt: skip
        return [Path(directory) / one.place for one in saved]

    async def transcript(self, *, after_seq: int = 0) -> AsyncIterator[Entry]:
        """Yield the entries after `after_seq`, oldest first."""
        async for entry in self._wire.transcript(self.session_id, after_seq=after_seq):
            yield entry_view(entry)

    async def search(
        self, words: str = "", *, pattern: str = "", with_descendants: bool = False, limit: int = 50
    ) -> list[SearchHit]:
        """Return up to `limit` places of the transcript with these words, or that match a pattern.

        The first search of a long transcript waits until it is indexed.
        """
        if bool(words) == bool(pattern):
            raise ValueError("give words or a pattern to search for")
        request = search_rpc.SearchEntriesRequest(
            session_id=self.session_id, with_descendants=with_descendants, page_size=min(limit, 200)
        )
        if words:
            request.words = words
        else:
            request.pattern = pattern
        hits = search_entries(self._wire.service("transcript"), request, limit=limit)
        return [view_of(SearchHit, hit) async for hit in hits]


def session_view(session: session_pb2.Session, wire: WireMesh) -> Session:
    """Return the view of a session of that mesh."""
    return view_of(Session, session, _wire=wire)


def _run_id(session: Session) -> str:
    return session.latest_run.run_id if session.latest_run is not None else ""
