"""Two sessions and the place where they went apart, for people."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.table import Table
from rich.text import Text
from spawnmesh.content.v1.message_pb2 import ContentBlock
from spawnmesh.session.v1.budget_pb2 import GetSessionUsageResponse
from spawnmesh.session.v1.session_pb2 import Session, SessionState
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh_client.budget_texts import cost_text
from spawnmesh_client.entry_fingerprints import call_arguments
from spawnmesh_client.session_diff import WireDiff

from spawnmesh_command.cli.answer_diff import line_parts, word_parts
from spawnmesh_command.cli.entries import entry_text
from spawnmesh_command.cli.show import console, plain, run_state

_SHOWN_CHARS = 400
_SHOWN_LINES = 12
_WIDE = 140  # From this width on, both sessions have a column.
_STYLES = {"-": "red", "+": "green", "@": "cyan", " ": ""}
_MARKS = {"-": ("[-", "-]"), "+": ("{+", "+}"), " ": ("", "")}
_CUT = " (a long text is cut: --full shows all)"


@dataclass(frozen=True, slots=True)
class DiffPrinter:
    """Print a difference. Without `full`, long texts are cut."""

    diff: WireDiff
    full: bool = False

    def print(self, usage_a: GetSessionUsageResponse | None, usage_b: GetSessionUsageResponse | None) -> None:
        """Print both sessions, what is the same, what differs, and what both have used."""
        usages = (usage_a, usage_b)
        self._print_rows(_head(self.diff, usages))
        print()
        for line in _summary(self.diff):
            print(plain(line, keep=""))
        self._print_entries()
        self._print_answers()
        if any(usages):
            print()
            self._print_rows(_used(usages))

    def _print_rows(self, rows: Sequence[Sequence[str]]) -> None:
        grid = Table.grid(padding=(0, 2))
        for _ in range(3):
            grid.add_column(overflow="fold")
        for name, *values in rows:
            styles = ("", "") if name else (_STYLES["-"], _STYLES["+"])
            cells = [
                Text(plain(value, keep=""), style=style) for value, style in zip(values, styles, strict=True)
            ]
            grid.add_row(Text(name, style="dim"), *cells)
        console().print(grid)

    def _print_entries(self) -> None:
        found = self.diff.found
        sides = [("-", found.only_a, found.is_cut_a), ("+", found.only_b, found.is_cut_b)]
        blocks = [self._blocks(*side) for side in sides]
        if not any(blocks):
            return
        print()
        if sys.stdout.isatty() and console().width >= _WIDE:
            console().print(side_by_side(*blocks))
            return
        for block in blocks:
            for text in block:
                console().print(text, soft_wrap=True)

    def _blocks(self, mark: str, entries: Sequence[Entry], is_cut: bool) -> list[Text]:
        """Return each entry with the mark before every line, so that no text can look like another
        entry.
        """
        blocks = [self._block(mark, entry) for entry in entries]
        if is_cut:
            blocks.append(Text(f"{mark} … more entries: --limit shows more", style=_STYLES[mark]))
        return blocks

    def _block(self, mark: str, entry: Entry) -> Text:
        heading, text = _heading_and_text(entry)
        rejected = ", superseded" if entry.entry_id in self.diff.found.superseded else ""
        block = Text(style=_STYLES[mark])
        block.append(f"{mark} {entry.seq:>4}  {plain(heading, keep='')}{rejected}", style="bold")
        for line in self._cut(text).split("\n") if text else ():
            block.append(f"\n{mark}       {plain(line, keep=chr(9))}".rstrip())
        return block

    def _cut(self, text: str) -> str:
        if self.full:
            return text
        shown = "\n".join(text[:_SHOWN_CHARS].split("\n")[:_SHOWN_LINES])
        return text if shown == text else f"{shown}…{_CUT}"

    def _print_answers(self) -> None:
        old, new = (one.latest_run.result_text for one in (self.diff.a, self.diff.b))
        if not old and not new:
            return
        print()
        if old == new:
            print("the answers are the same")
        elif not old or not new:
            print(f"only {'A' if old else 'B'} has an answer")
        else:
            self._print_answer_diff(old, new)

    def _print_answer_diff(self, old: str, new: str) -> None:
        words = word_parts(old, new)
        lines = None if words is not None else line_parts(old, new)
        if words is not None:
            print("the answers:")
            line = Text()
            for mark, text in words:
                before, behind = _MARKS[mark]
                line.append(f"{before}{plain(text, keep='')}{behind}", style=_STYLES[mark])
            console().print(line, soft_wrap=True)
        elif lines is not None:
            print("the answers:")
            for mark, text in lines:
                shown = text if mark == "@" else f"{mark} {plain(self._cut(text), keep=chr(9))}".rstrip()
                console().print(Text(shown, style=_STYLES[mark]), soft_wrap=True)
        else:
            print("the answers differ; they are too long to be compared here")


def side_by_side(left: Sequence[Text], right: Sequence[Text]) -> Table:
    """Return a table with the entries of A on the left and those of B on the right."""
    table = Table(box=None, pad_edge=False, show_header=False, expand=True)
    for _ in range(2):
        table.add_column(ratio=1, overflow="fold")
    for pair in zip_longest(left, right, fillvalue=Text()):
        table.add_row(*pair)
    return table


def _head(diff: WireDiff, usages: Sequence[GetSessionUsageResponse | None]) -> list[tuple[str, str, str]]:
    sides = ((diff.a, diff.found.only_a), (diff.b, diff.found.only_b))
    rows: list[tuple[str, str, str]] = [("", "- A", "+ B")]
    rows.append(_row("session", [one.session_id for one, _ in sides]))
    rows.append(_row("label", [one.label for one, _ in sides]))
    rows.append(_row("agent", [_agent(one) for one, _ in sides]))
    rows.append(_row("models", [", ".join(_models(entries)) for _, entries in sides]))
    rows.append(_row("state", [_state(one) for one, _ in sides]))
    rows.append(_row("family", [_family(usage) for usage in usages]))
    return [row for row in rows if any(row[1:])]


def _row(name: str, values: Sequence[str]) -> tuple[str, str, str]:
    first, second = values
    return name, first, second


def _agent(session: Session) -> str:
    return f"{session.agent_id} v{session.agent_version}" if session.agent_version else session.agent_id


def _models(entries: Sequence[Entry]) -> dict[str, None]:
    """Return the models that answered in these entries, in order."""
    models = (entry.body.message.model for entry in entries)
    return {model: None for model in models if model}


def _state(session: Session) -> str:
    state = SessionState.Name(session.state).removeprefix("SESSION_STATE_")
    return ", ".join(part for part in (state, run_state(session)) if part)


def _family(usage: GetSessionUsageResponse | None) -> str:
    if usage is None:
        return ""
    used = usage.family.usage
    partial = " (the first sessions)" if usage.is_family_partial else ""
    tokens = used.input_token_count + used.output_token_count
    return f"{tokens:,} tokens, cost {cost_text(used.cost_micros)}{partial}"


def _used(usages: Sequence[GetSessionUsageResponse | None]) -> list[tuple[str, str, str]]:
    """Return the usage of the ended runs of both sessions, without their descendants."""
    sums = [None if one is None else one.session for one in usages]

    def row(name: str, field: str) -> tuple[str, str, str]:
        return _row(name, ["" if one is None else f"{getattr(one.usage, field):,}" for one in sums])

    return [
        ("", "- A", "+ B"),
        _row("ended runs", ["" if one is None else f"{one.ended_run_count:,}" for one in sums]),
        row("input tokens", "input_token_count"),
        row("output tokens", "output_token_count"),
        _row("cost", ["" if one is None else cost_text(one.usage.cost_micros) for one in sums]),
    ]


def _summary(diff: WireDiff) -> Iterator[str]:
    """Yield the fork, and what is the same."""
    a, b, found = diff.a, diff.b, diff.found
    point = diff.forked_at
    if point is not None and point.session_id == a.session_id:
        yield f"B was forked from A at entry {point.seq}"
    elif point is not None and point.session_id == b.session_id:
        yield f"A was forked from B at entry {point.seq}"
    elif point is not None:
        yield f"both were forked from {point.session_id}: A at entry {a.fork.seq}, B at entry {b.fork.seq}"
    if found.left_out_count:
        yield f"the copy begins behind the first messages of the source: {found.left_out_count} are left out"
    if diff.view.is_equal:
        yield f"the same: {_counted(diff)}" if found.common_count else "the same: neither has entries"
    elif found.common_count:
        place = f"entry {found.common_seq_a}"
        if found.common_seq_a != found.common_seq_b:
            place = f"entry {found.common_seq_a} of A and entry {found.common_seq_b} of B"
        yield f"the same up to {place} ({_counted(diff)})"
    else:
        yield "they differ from the first entry on"


def _counted(diff: WireDiff) -> str:
    count = diff.found.common_message_count
    return f"{count:,} message{'s' * (count != 1)}"


def _heading_and_text(entry: Entry) -> tuple[str, str]:
    """Return them as `entry_text` does, but the complete blocks of messages."""
    heading, text = entry_text(entry)
    kind = entry.body.WhichOneof("kind")
    if kind == "label":
        return "label", "the draft before it is superseded"
    if kind not in ("message", "mirror"):
        return heading, text
    message = entry.body.message if kind == "message" else entry.body.mirror.message
    command = [f"$ {message.bash_execution.command}"] if message.HasField("bash_execution") else []
    return heading, "\n".join([*command, *(_block_text(block) for block in message.content)])


def _block_text(block: ContentBlock) -> str:
    match block.WhichOneof("block"):
        case "text":
            return block.text.text
        case "thinking":
            return f"[thinking] {block.thinking.text}"
        case "tool_call":
            return f"[calls {block.tool_call.name}] {call_arguments(block.tool_call.block_json)}"
        case "image":
            return f"[image, {block.image.mime_type}, {len(block.image.data)} bytes]"
        case _:
            return "[of a kind this client does not know]"
