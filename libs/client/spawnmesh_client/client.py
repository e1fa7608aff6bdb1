"""The mesh as a program uses it: typed views, and an exception class for each kind of refusal."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from spawnmesh.content.v1 import thinking_pb2
from spawnmesh.session.v1 import session_pb2

from spawnmesh_client.agents import Agents
from spawnmesh_client.approvals import Approvals
from spawnmesh_client.attachment_uploads import OnProgress, no_progress
from spawnmesh_client.attachments import Attachable, ReferencedFile, message_of, sendable
from spawnmesh_client.budget_views import Budget
from spawnmesh_client.budgets import budget_message
from spawnmesh_client.connections import open_service
from spawnmesh_client.discovery import find_mesh
from spawnmesh_client.files import Files
from spawnmesh_client.live import LiveEvent, live_events, session_events
from spawnmesh_client.models import Models
from spawnmesh_client.operations import Operations
from spawnmesh_client.outcomes import Result
from spawnmesh_client.plugins import Plugins
from spawnmesh_client.schedules import Schedules
from spawnmesh_client.session import Session, session_view
from spawnmesh_client.session_diff import MAX_ENTRIES, SessionDiff, diff_sessions
from spawnmesh_client.settings import ClientSettings, ConnectionSettings, MeshEnvironment
from spawnmesh_client.tenants import Tenants
from spawnmesh_client.times import seconds_of
from spawnmesh_client.token_peer import Token, TokenPeer
from spawnmesh_client.view_of import number_of
from spawnmesh_client.views import SearchHit, SessionEvent, SessionFields
from spawnmesh_client.webhooks import Webhooks
from spawnmesh_client.wire import WireMesh


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh as the tenant of one token sees it. Several tasks may use it at once."""

    wire: WireMesh
    """The same mesh in the messages of the contracts, and `wire.services` for every other RPC."""

    async def spawn(
        self,
        task: str,
        *,
        attachments: Sequence[Attachable | ReferencedFile] = (),
        agent: str = "",
        label: str = "",
        metadata: Mapping[str, str] | None = None,
        model: str = "",
        thinking: str = "",
        mode: str = "",
        context: str = "",
        cleanup: str = "",
        runtime: str = "",
        run_timeout: float | timedelta | None = None,
        mount_path: str = "",
        parent: "Session | str" = "",
        fork_of: "Session | str" = "",
        fork_at_seq: int = 0,
        budget: Budget | None = None,
        request_id: str | None = None,
        on_progress: OnProgress = no_progress,
    ) -> Session:
        """Spawn a session and queue its run. It is durable on return.

        An attachment is a path, or an `Attachment` of bytes, of a path or of a binary stream. Large
        files are uploaded before the spawn, and `on_progress` reports them. A `ReferencedFile` is a
        file that the mesh has, such as one of `OutputSet.references`. `mode`, `context`,
        `cleanup`, `runtime` and `thinking` are words such as `SessionMode.SESSION` or `"SESSION"`;
        `run_timeout` is in seconds. With `fork_at_seq`, the session begins with a copy of the
        messages of `fork_of`, or of the parent, up to this entry. The session shares its `budget`
        with all its descendants; runs wait while it is used up. For a day, the same `request_id`
        returns the same session.
        Raises OSError for a file that cannot be read, and ValueError for an unknown word and for a
        limit of a budget that is 0 or negative.
        """
        words = {
            "thinking": number_of(thinking, thinking_pb2.ThinkingLevel.DESCRIPTOR),
            "mode": number_of(mode, session_pb2.SessionMode.DESCRIPTOR),
            "context": number_of(context, session_pb2.ContextMode.DESCRIPTOR),
            "cleanup": number_of(cleanup, session_pb2.Cleanup.DESCRIPTOR),
            "runtime": number_of(runtime, session_pb2.Runtime.DESCRIPTOR),
        }
        references = [message_of(one) for one in attachments if isinstance(one, ReferencedFile)]
        sent = [one for one in attachments if not isinstance(one, ReferencedFile)]
        async with sendable(sent) as files:
            session = await self.wire.spawn(
                task,
                attachments=files,
                references=references,
                agent_id=agent,
                label=label,
                metadata=metadata,
                model=model,
                run_timeout_seconds=None if run_timeout is None else seconds_of(run_timeout),
                mount_path=mount_path,
                parent_session_id=parent if isinstance(parent, str) else parent.session_id,
                fork=_fork_point(fork_of, fork_at_seq),
                budget=None if budget is None else budget_message(budget),
                request_id=request_id,
                on_progress=on_progress,
                **_untyped(words),
            )
        return session_view(session, self.wire)

    async def run(self, task: str, *, timeout: float | None = None, **options: Any) -> Result:
        """Spawn a session and wait for its result: `spawn`, then `Session.result`."""
        return await (await self.spawn(task, **options)).result(timeout)

    async def session(self, session_id: str) -> Session:
        """Return the session as it is now. Raises NotFound."""
        return session_view(await self.wire.session(session_id), self.wire)

    async def sessions(
        self,
        filter: str = "",
        *,
        order_by: str = "",
        with_results: bool = False,
        include_archived: bool = False,
        page_size: int = 0,
    ) -> AsyncIterator[Session]:
        """Yield the tenant's sessions that the filter accepts, newest first unless `order_by` says
        otherwise.

        A filter is such as `run_state = FAILED AND metadata.ticket = "17"`; that of the children of
        a session is `parent_session_id = ses_…`. Without `with_results`, the sessions have neither
        the texts of results nor the names of files. Raises InvalidRequest, with what is possible.
        """
        view = session_pb2.SESSION_VIEW_FULL if with_results else session_pb2.SESSION_VIEW_BASIC
        found = self.wire.sessions(
            filter=filter,
            order_by=order_by,
            view=view,
            include_archived=include_archived,
            page_size=page_size,
        )
        async for session in found:
            yield session_view(session, self.wire)

    async def events(self, session_id: str, *, after: int = 0) -> AsyncIterator[SessionEvent]:
        """Yield the events of a session as `Session.events` does."""
        async with aclosing(session_events(self.wire, session_id, after)) as events:
            async for event in events:
                yield event

    async def live(
        self, session_id: str, *, after: str = "", with_descendants: bool = False
    ) -> AsyncGenerator[LiveEvent, None]:
        """Yield what happens in a session as `Session.live` does."""
        events = live_events(self.wire, session_id, after, with_descendants=with_descendants)
        async with aclosing(events):
            async for event in events:
                yield event

    async def search(
        self,
        session_id: str,
        words: str = "",
        *,
        pattern: str = "",
        with_descendants: bool = False,
        limit: int = 50,
    ) -> list[SearchHit]:
        """Search the transcript of a session as `Session.search` does."""
        session = await self.session(session_id)
        return await session.search(words, pattern=pattern, with_descendants=with_descendants, limit=limit)

    async def diff(
        self, a: SessionFields | str, b: SessionFields | str, *, max_entries: int = MAX_ENTRIES
    ) -> SessionDiff:
        """Return where two sessions went apart, such as a fork and the session it was forked from,
        with up to `max_entries` entries of each from there on.

        Entries are compared by what they say: roles, texts, tool calls with their arguments, and
        results. Ids, times, models, thinking and usage do not count. The common beginning is read
        page by page and not kept. Raises NotFound, and ValueError for a negative limit.
        """
        ids = (one if isinstance(one, str) else one.session_id for one in (a, b))
        return (await diff_sessions(self.wire, *ids, max_entries=max_entries)).view

    @property
    def agents(self) -> Agents:
        """The tenant's agents."""
        return Agents(self.wire)

    @property
    def approvals(self) -> Approvals:
        """The tool calls that wait for a person, and the questions of agents."""
        return Approvals(self.wire)

    @property
    def files(self) -> Files:
        """Uploads, and the files that sessions have."""
        return Files(self.wire)

    @property
    def models(self) -> Models:
        """The models that the mesh can call."""
        return Models(self.wire)

    @property
    def operations(self) -> Operations:
        """The long work of the tenant."""
        return Operations(self.wire)

    @property
    def plugins(self) -> Plugins:
        """The tenant's plugins."""
        return Plugins(self.wire)

    @property
    def schedules(self) -> Schedules:
        """The tenant's schedules, which spawn sessions by the clock."""
        return Schedules(self.wire)

    @property
    def tenants(self) -> Tenants:
        """All tenants. For operators of the mesh."""
        return Tenants(self.wire)

    @property
    def webhooks(self) -> Webhooks:
        """The tenant's webhooks, which are sent its events."""
        return Webhooks(self.wire)


@asynccontextmanager
async def connect(
    url: str = "",
    *,
    token: Token | None = None,
    targets: Mapping[str, str] | None = None,
    settings: ConnectionSettings | None = None,
) -> AsyncIterator[Mesh]:
    """Connect to a mesh. The first call opens the connection; the end of the block closes it.

    The mesh is the one at `url`, such as `https://mesh.example.com`, which serves all services at
    one address: in plaintext for `http`, with TLS for `https`. `targets` names the address of each
    service instead, as `host:port` or `dns:///host:port`. Without both, it is the mesh that
    `SPAWNMESH_URL` or `SPAWNMESH_SESSION_TARGET` and its like name, else the one that
    `spawnmesh up` started in this directory, with its token.

    `token` may be a function that is called before each call, for a program that outlives its
    tokens; without one it is `SPAWNMESH_TOKEN`. TLS files and the message limit come from
    `settings`, or from `SPAWNMESH_…` in the environment. Calls are traced with the program's own
    OpenTelemetry tracer provider, if it has one. Raises Unavailable without a mesh, Unauthenticated
    without a token, TlsUnusable for TLS files that cannot be used, and ValueError for a malformed
    URL or variable.
    """
    found = find_mesh(url, targets, token, MeshEnvironment.read())
    chosen = settings or ClientSettings.from_environment()
    async with AsyncExitStack() as stack:
        services = {}
        for name, target in found.targets.items():
            opened = open_service(name, target, chosen, scheme=found.scheme)
            services[name] = TokenPeer(await stack.enter_async_context(opened), found.token)
        yield Mesh(WireMesh(services, chosen.max_message_bytes))


def _untyped(words: dict[str, int]) -> dict[str, Any]:
    """Return the numbers of enums, whose generated types are not ints."""
    return dict(words)


def _fork_point(source: "Session | str", seq: int) -> session_pb2.ForkPoint | None:
    """Return the entry to fork at. Raises ValueError for a session without an entry."""
    session_id = source if isinstance(source, str) else source.session_id
    if session_id and seq <= 0:
        raise ValueError("fork_of needs fork_at_seq, the entry up to which it is copied")
    return session_pb2.ForkPoint(session_id=session_id, seq=seq) if seq else None
