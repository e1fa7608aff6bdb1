"""The command `spawnmesh transcript context`."""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text
from spawnmesh.transcript.v1.context_pb2 import DropCause, DroppedEntries
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh.transcript.v1.transcript_service_pb2 import AssembleContextResponse
from spawnmesh_client.contexts import assemble_context
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli.arguments import SessionId
from spawnmesh_command.cli.entries import entry_text
from spawnmesh_command.cli.numbers import INT32_MAX, INT64_MAX
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import console, plain, print_json, value_of

_SHOWN_CHARS = 60
_SPEAKER_CHARS = 30
_RUN_BUDGET = 100_000  # The budget of a run whose agent sets none.


def add_commands(group: typer.Typer) -> None:
    """Add it below `transcript`."""
    group.command("context")(show_context)


def show_context(
    context: typer.Context,
    session_id: SessionId,
    budget: Annotated[
        int, typer.Option(min=1, max=INT32_MAX, metavar="TOKENS", help="The model's token budget.")
    ] = _RUN_BUDGET,
    model: Annotated[
        str, typer.Option(help="`provider/model`, to count in its tokens; else the stored counts.")
    ] = "",
    up_to: Annotated[
        int,
        typer.Option(
            "--up-to", min=0, max=INT64_MAX, metavar="SEQ", help="As it was when the transcript ended there."
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Print what a model reads of a transcript, one entry a line: now, or at an earlier time; with
    --json the complete response.
    """

    async def body(mesh: WireMesh) -> AssembleContextResponse:
        return await assemble_context(
            mesh.service("transcript"), session_id, token_budget=budget, model=model, up_to_seq=up_to
        )

    assembled = with_mesh(context, body, as_json=as_json)
    if as_json:
        print_json(value_of(assembled))
        return
    stubbed = {one.seq for one in assembled.stubbed}
    for entry in assembled.entries:
        mark = _mark(entry, is_stub=entry.seq in stubbed, fresh_seq=assembled.fresh_seq)
        console().print(Text(entry_line(entry, mark)), soft_wrap=True)
    for line in summary_lines(assembled, budget=budget, model=model):
        console().print(Text(line, style="dim"), soft_wrap=True)


def entry_line(entry: Entry, mark: str) -> str:
    """Return seq, speaker, tokens, mark, and the first characters of the text."""
    heading, text = entry_text(entry)
    speaker, said = (plain(" ".join(part[: 4 * _SHOWN_CHARS].split()), keep="") for part in (heading, text))
    seq = str(entry.seq) if entry.seq else "-"
    columns = (
        f"{seq:>6}",
        f"{_cut(speaker, _SPEAKER_CHARS):<{_SPEAKER_CHARS}}",
        f"{entry.token_count:>7,}",
        f"{mark:<9}",
        _cut(said, _SHOWN_CHARS),
    )
    return "  ".join(columns).rstrip()


def summary_lines(assembled: AssembleContextResponse, *, budget: int, model: str) -> Iterator[str]:
    """Yield the totals, the missing entries with their reasons, and the source of the counts."""
    counted = f"{len(assembled.entries)} entries, {assembled.token_count:,} of {budget:,} tokens"
    made_up = (
        f", {assembled.synthetic_result_count} synthetic results" if assembled.synthetic_result_count else ""
    )
    yield counted + made_up
    for dropped in assembled.dropped:
        yield _dropped_line(dropped)
    if assembled.dropped_entry_count and not assembled.dropped:
        yield f"dropped: {assembled.dropped_entry_count} entries, budget"
    if assembled.superseded_entry_count and not assembled.dropped:
        yield f"dropped: {assembled.superseded_entry_count} entries, superseded"
    reader = plain(f" for {model}" if model else "", keep="")
    if assembled.is_estimate:
        yield f"counts are estimates{reader}, made from {assembled.token_vocabulary}"
    else:
        yield f"counted by {assembled.token_vocabulary}{reader}"
    if assembled.compaction_due:
        yield "compaction is due: `spawnmesh transcript compact`"


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _mark(entry: Entry, *, is_stub: bool, fresh_seq: int) -> str:
    if not entry.entry_id:
        return "synthetic"
    if entry.body.HasField("compaction"):
        return "summary"
    if is_stub:
        return "stub"
    return "tail" if entry.seq >= fresh_seq else ""


def _dropped_line(dropped: DroppedEntries) -> str:
    cause = DropCause.Name(dropped.cause).removeprefix("DROP_CAUSE_").lower()
    return f"dropped {dropped.first_seq}-{dropped.last_seq}: {dropped.entry_count} entries, {cause}"
