"""Print what happens in a session as it happens."""

import asyncio
import json
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, Message, ToolCall
from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh.transcript.v1.live_service_pb2 import DraftDelta, DraftRetracted, EntryAppended
from spawnmesh_client.live_streams import LiveMessage, LivePosition, ends_run, live_messages
from spawnmesh_client.token_peer import UnknownPeer
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError

from spawnmesh_command.cli.budget_text import waiting_lines
from spawnmesh_command.cli.entries import entry_text
from spawnmesh_command.cli.outputs import text_of_sets
from spawnmesh_command.cli.show import event_line, one_line, plain, print_json, value_of

_RETRACTED = "— retracted: the text above does not count —"
_HIDDEN_KINDS = ("header", "label")
_CATCH_UP_SECONDS = 10.0
_WAITING = (session_pb2.RUN_STATE_WAITING_APPROVAL, session_pb2.RUN_STATE_WAITING_BUDGET)
_NAMES = {
    session_pb2.SessionEvent: "session_event",
    DraftDelta: "draft_delta",
    DraftRetracted: "draft_retracted",
    EntryAppended: "entry_appended",
}


class LivePrinter:
    """Print states, texts, calls of tools and their results.

    `cursor` is that of the last message. `is_complete` says whether the end of the run was reached.
    `set_ids` are the sets of files that were published.
    """

    def __init__(self, session_id: str = "", cursor: str = "") -> None:
        self.session_id = session_id
        self.cursor = cursor
        self._is_in_line = False
        self._has_draft = False
        self.is_complete = False
        self.set_ids: set[str] = set()
        self._answer: str | None = None

    def begin(self, session: session_pb2.Session) -> None:
        """Print the ids under which operators find the session."""
        self._print_line(plain(f"{session.session_id}  trace {session.trace_id}", keep=""))

    def take(self, message: LiveMessage) -> None:
        """Print the message."""
        match message.message:
            case session_pb2.SessionEvent() as event:
                if event.set_id:
                    self.set_ids.add(event.set_id)
                self._print_line(event_line(event))
            case DraftDelta() as delta:
                self._take_delta(delta)
            case DraftRetracted():
                self._has_draft = False
                self._print_line(_RETRACTED)
            case EntryAppended() as appended:
                self._take_entry(appended.entry, completes_draft=appended.completes_draft)
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

    def _take_delta(self, delta: DraftDelta) -> None:
        if delta.begins_draft:
            self.end_line()
        elif not self._has_draft:
            self._say("…")  # The watch began within the text.
        self._has_draft = True
        self._say(delta.text)

    def _take_entry(self, entry: Entry, *, completes_draft: bool) -> None:
        kind, message = entry.body.WhichOneof("kind"), entry.body.message
        if kind in _HIDDEN_KINDS:
            return
        if kind == "message" and message.role == ROLE_ASSISTANT:
            self._take_answer(message, completes_draft=completes_draft)
        else:
            heading, text = entry_text(entry)
            self._print_line(one_line(f"{heading}: {text}" if text else heading))

    def _take_answer(self, message: Message, *, completes_draft: bool) -> None:
        text = "".join(block.text.text for block in message.content)
        if completes_draft:
            self._has_draft = False
        else:
            self.end_line()
            self._say(text)
        self.end_line()
        self._answer = text
        for block in message.content:
            if block.HasField("tool_call"):
                self._print_line(one_line(f"{block.tool_call.name} {_arguments(block.tool_call)}"))

    def _say(self, text: str) -> None:
        if text:
            print(plain(text), end="", flush=True)
            self._is_in_line = not text.endswith("\n")

    def _print_line(self, line: str) -> None:
        self.end_line()
        print(line, flush=True)


class JsonPrinter(LivePrinter):
    """Print each message in a line, with its cursor."""

    def begin(self, session: session_pb2.Session) -> None:
        """Print nothing: each event has its line."""

    def take(self, message: LiveMessage) -> None:
        """Print the message under the name of its kind."""
        print_json({"cursor": message.cursor, _NAMES[type(message.message)]: value_of(message.message)})
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
            command = plain(f"spawnmesh watch {printer.session_id}{after}", keep="")
            print(f"continue with `{command}`", file=sys.stderr)
        raise


async def print_session_live(mesh: WireMesh, printer: LivePrinter) -> None:
    """Print what happens behind the cursor of the printer, until the session has ended."""
    session_id = printer.session_id
    printer.begin(await mesh.session(session_id))
    async with aclosing(live_messages(mesh, session_id, LivePosition.parse(printer.cursor))) as messages:
        async for message in messages:
            printer.take(message)
            event = message.message
            if isinstance(event, session_pb2.SessionEvent) and event.run_state in _WAITING:
                with suppress(MeshError):  # The watch goes on without the line.
                    if lines := await waiting_lines(mesh, (await mesh.session(session_id)).latest_run):
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
    async with aclosing(live_messages(mesh, printer.session_id)) as messages:
        async for message in messages:
            match message.message:
                case EntryAppended() as appended if appended.entry.writer.run_id != run_id:
                    continue  # A fork begins with copies of entries.
                case session_pb2.SessionEvent() as event if ends_run(event) and event.run_id == run_id:
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
