"""Print what happens in a session as it happens."""

import asyncio
import json
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, Message, ToolCall
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest, WatchSessionResponse
from spawnmesh.transcript.v1.live_event_pb2 import DraftDelta, EntryAppended
from spawnmesh_client.live import ends_run
from spawnmesh_client.token_peer import UnknownPeer
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError

from spawnmesh_command.cli.budget_text import waiting_lines
from spawnmesh_command.cli.draft_lines import DraftLines
from spawnmesh_command.cli.entries import entry_text
from spawnmesh_command.cli.outputs import text_of_sets
from spawnmesh_command.cli.show import event_line, one_line, plain, print_json, value_of

_RETRACTED = "— retracted: the text above does not count —"
_HIDDEN_KINDS = ("header", "label")
_CATCH_UP_SECONDS = 10.0
_WAITING = (session_pb2.RUN_STATE_WAITING_APPROVAL, session_pb2.RUN_STATE_WAITING_BUDGET)


class LivePrinter:
    """Print states, texts, calls of tools and their results.

    `cursor` is that of the last message. `is_complete` says whether the end of the run was reached.
    `set_ids` are the sets of files that were published. `agents` are those of known sessions.

    With descendants, a heading says in which session the lines below it happened. Drafts of two
    sessions at the same time would mix: only that of one is printed as it comes, and the other's
    text with its entry. So is that of a draft that had begun before the watch.
    """

    def __init__(self, session_id: str = "", cursor: str = "", *, with_descendants: bool = False) -> None:
        self.session_id = session_id
        self.cursor = cursor
        self.with_descendants = with_descendants
        self._is_in_line = False
        self._speaker = ""  # The session whose draft is printed.
        self._told_of = session_id  # The session of the newest line.
        self.agents: dict[str, str] = {}
        self.is_complete = False
        self.set_ids: set[str] = set()
        self._answer: str | None = None
        self._draft = DraftLines()

    def begin(self, session: session_pb2.Session) -> None:
        """Print the ids under which operators find the session."""
        self.agents[session.session_id] = session.agent_id
        self._print_line(plain(f"{session.session_id}  trace {session.trace_id}", keep=""))

    def lacks_agent(self, session_id: str) -> bool:
        """Return whether a heading would have no agent: the watch began behind the spawn."""
        return self.with_descendants and session_id not in self.agents

    def take(self, message: WatchSessionResponse) -> None:
        """Print the message."""
        session_id = message.session_id
        match message.WhichOneof("event"):
            case "session_event":
                self._take_event(session_id, message.session_event)
            case "draft_delta":
                self._take_delta(session_id, message.draft_delta)
            case "draft_retracted":
                if session_id == self._speaker or not self.with_descendants:
                    self._speaker = ""
                    self._print_line(_RETRACTED, session_id)
            case "entry_appended":
                self._take_entry(session_id, message.entry_appended)
        self.cursor = message.cursor

    def hint(self, text: str) -> None:
        """Print what to type, such as the command that decides on an approval."""
        self._print_line(text)

    def end_line(self) -> None:
        """End the line of a text, so that something else can be printed."""
        if self._is_in_line:
            print(flush=True)
        self._is_in_line = False

    def print_result(self, run: session_pb2.Run) -> bool:
        """Print the result of a run that succeeded, unless it is the newest printed answer.

        Return False, and print nothing, if it did not succeed, or if something was left out.
        """
        if run.state != session_pb2.RUN_STATE_SUCCEEDED or not self.is_complete:
            return False
        if run.result_text != self._answer:
            self._print_line(plain("\n" + run.result_text))
        return True

    def _take_event(self, session_id: str, event: session_pb2.SessionEvent) -> None:
        if event.set_id and session_id == self.session_id:
            self.set_ids.add(event.set_id)
        if event.kind == session_pb2.SESSION_EVENT_KIND_CHILD_SPAWNED:
            self.agents[event.child_session_id] = event.detail
        self._print_line(event_line(event), session_id)

    def _take_delta(self, session_id: str, delta: DraftDelta) -> None:
        begins = delta.begins_draft and self._speaker in ("", session_id)
        # The watch began within the draft.
        joins = not (delta.begins_draft or self._speaker or self.with_descendants)
        if begins or joins:
            self.end_line()
            self._speaker, self._draft = session_id, DraftLines()
        if session_id == self._speaker:
            goes_on = joins or (session_id != self._told_of and not begins)
            self._head(session_id)
            self._say(delta, goes_on=goes_on)

    def _take_entry(self, session_id: str, appended: EntryAppended) -> None:
        entry = appended.entry
        kind, message = entry.body.WhichOneof("kind"), entry.body.message
        if kind in _HIDDEN_KINDS:
            return
        if kind == "message" and message.role == ROLE_ASSISTANT:
            is_printed = appended.completes_draft and session_id == self._speaker
            self._take_answer(session_id, message, is_printed=is_printed)
        else:
            heading, text = entry_text(entry)
            self._print_line(one_line(f"{heading}: {text}" if text else heading), session_id)

    def _take_answer(self, session_id: str, message: Message, *, is_printed: bool) -> None:
        text = "".join(block.text.text for block in message.content)
        if session_id == self.session_id:
            self._answer = text
        if is_printed:
            self._speaker = ""
            self.end_line()
            return
        if text:
            self._print_line(plain(text.removesuffix("\n")), session_id)
        for block in message.content:
            if block.HasField("tool_call"):
                call = one_line(f"{block.tool_call.name} {_arguments(block.tool_call)}")
                self._print_line(call, session_id)

    def _head(self, session_id: str) -> None:
        """Print the session of the next text, unless it is that of the line before."""
        if session_id == self._told_of:
            return
        self._told_of = session_id
        if self.with_descendants:
            agent = self.agents.get(session_id, "")
            self._print_line(plain(f"— {session_id}  {agent}".rstrip() + " —", keep=""))

    def _say(self, delta: DraftDelta, *, goes_on: bool) -> None:
        begins = self._draft.begins_line(delta)
        if begins:
            self.end_line()
        text = ("…" if goes_on and not begins else "") + self._draft.shown(delta)
        if text:
            print(text, end="", flush=True)
            self._is_in_line = not text.endswith("\n")

    def _print_line(self, line: str, session_id: str = "") -> None:
        """Print the line, and what it is about if that is another session than before."""
        if session_id:
            self._head(session_id)
        self.end_line()
        print(line, flush=True)


class JsonPrinter(LivePrinter):
    """Print each message in a line, with its cursor."""

    def begin(self, session: session_pb2.Session) -> None:
        """Print nothing: each event has its line."""

    def lacks_agent(self, session_id: str) -> bool:
        """Return False: there are no headings."""
        return False

    def take(self, message: WatchSessionResponse) -> None:
        """Print the message."""
        print_json(value_of(message))
        self.cursor = message.cursor

    def hint(self, text: str) -> None:
        """Print nothing: the events say it."""


@contextmanager
def resumable(printer: LivePrinter | None) -> Iterator[None]:
    """Print how to continue if Ctrl-C ends the block."""
    try:
        yield
    except KeyboardInterrupt:
        if printer is not None and printer.session_id:
            printer.end_line()
            after = f" --after {shlex.quote(printer.cursor)}" if printer.cursor else ""
            family = " --family" if printer.with_descendants else ""
            as_json = " --json" if isinstance(printer, JsonPrinter) else ""
            command = plain(f"spawnmesh watch {printer.session_id}{family}{as_json}{after}", keep="")
            print(f"continue with `{command}`", file=sys.stderr)
        raise


async def print_session_live(mesh: WireMesh, printer: LivePrinter) -> None:
    """Print what happens behind the cursor of the printer, until the session has ended."""
    session_id = printer.session_id
    printer.begin(await mesh.session(session_id))
    request = WatchSessionRequest(
        session_id=session_id,
        cursor=printer.cursor,
        with_transcript=True,
        with_descendants=printer.with_descendants,
    )
    async with aclosing(mesh.watch(request)) as messages:
        async for message in messages:
            if printer.lacks_agent(message.session_id):
                printer.agents[message.session_id] = ""
                with suppress(MeshError):  # It may be deleted.
                    printer.agents[message.session_id] = (await mesh.session(message.session_id)).agent_id
            printer.take(message)
            if message.session_event.run_state in _WAITING:
                with suppress(MeshError):  # The watch goes on without the line.
                    waiting = await mesh.session(message.session_id)
                    if lines := await waiting_lines(mesh, waiting.latest_run):
                        printer.hint(lines)
    if printer.set_ids and (text := await text_of_sets(mesh, session_id, printer.set_ids)):
        printer.hint(f"\n{text}")


async def print_run(
    mesh: WireMesh,
    session: session_pb2.Session,
    printer: LivePrinter,
    wait: Callable[[], Awaitable[tuple[session_pb2.Session, bool]]],
) -> tuple[session_pb2.Session, bool]:
    """Print what happens until the run of the session has ended, and return what `wait` returns.

    What cannot be read is left out, and a line says why.
    """
    printer.session_id, is_late = session.session_id, False
    printing = asyncio.create_task(_print_until_end(mesh, session.latest_run.run_id, printer))
    try:
        waited, done = await wait()
        if done:
            await asyncio.wait({printing}, timeout=_CATCH_UP_SECONDS)
            is_late = not printing.done()
    finally:
        printing.cancel()
        (ended,) = await asyncio.gather(printing, return_exceptions=True)
        printer.end_line()
    if is_late or isinstance(ended, MeshError | UnknownPeer):
        why = f"no news for {_CATCH_UP_SECONDS:g} s after the end of the run" if is_late else ended
        why = f"the session was not followed to its end: {why}"
        print(plain(why, keep=""), file=sys.stderr, flush=True)
    elif isinstance(ended, Exception):
        raise ended
    if waited.latest_run.run_id != session.latest_run.run_id:
        printer.is_complete = False
    return waited, done


async def _print_until_end(mesh: WireMesh, run_id: str, printer: LivePrinter) -> None:
    """Print what the run does until it has ended. A result stands for the end in success."""
    request = WatchSessionRequest(session_id=printer.session_id, with_transcript=True)
    async with aclosing(mesh.watch(request)) as messages:
        async for message in messages:
            kind, event = message.WhichOneof("event"), message.session_event
            if kind == "entry_appended" and message.entry_appended.entry.writer.run_id != run_id:
                continue  # A fork begins with copies of entries.
            if ends_run(event) and event.run_id == run_id:
                if event.run_state != session_pb2.RUN_STATE_SUCCEEDED:
                    printer.take(message)
                printer.is_complete = True
                return
            printer.take(message)


def _arguments(call: ToolCall) -> str:
    """Return the arguments of the call in JSON; the complete block if they are not there."""
    with suppress(ValueError, RecursionError, AttributeError):
        block = json.loads(call.block_json)
        found = block.get("arguments", block.get("input"))
        if found is not None:
            return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return call.block_json
