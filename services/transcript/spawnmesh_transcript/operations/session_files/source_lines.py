"""Keep the line of a session file that an entry was imported from, without the texts that the
entry itself has.
"""

from base64 import b64encode
from collections.abc import Iterator, Sequence

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.json_text import quoted

NOT_CUT = -1
"""In place of a gap: the line still has this text."""


def texts_of(body: pb.EntryBody) -> Iterator[str]:
    """Yield the texts that the entry has of its line, each as JSON, in the contract's order."""
    match body.WhichOneof("kind"):
        case "message":
            yield from _message_texts(body.message)
        case "compaction":
            yield quoted(body.compaction.summary)
        case "branch_summary":
            yield quoted(body.branch_summary.summary)
        case "custom":
            yield body.custom.data_json
        case "opaque":
            yield body.opaque.entry_json


def _message_texts(message: content_pb.Message) -> Iterator[str]:
    for block in message.content:
        match block.WhichOneof("block"):
            case "text":
                yield quoted(block.text.text)
            case "thinking":
                yield quoted(block.thinking.text)
                yield quoted(block.thinking.signature)
            case "tool_call":
                yield block.tool_call.block_json
            case "image":
                yield quoted(b64encode(block.image.data).decode())
    if message.HasField("bash_execution"):
        yield quoted(message.bash_execution.command)


def with_gaps(line: str, source_id: str, spans: Sequence[tuple[int, int] | None]) -> pb.Source:
    """Return the line without the texts at these spans, one for each of the entry's texts.

    None stands for a text that the line does not have in the same spelling.
    """
    source = pb.Source(id=source_id, gaps=[NOT_CUT] * len(spans))
    pieces: list[str] = []
    done = length = 0
    for start, end, place in sorted((*span, place) for place, span in enumerate(spans) if span):
        pieces.append(line[done:start])
        length += start - done
        source.gaps[place] = length
        done = end
    pieces.append(line[done:])
    source.line = "".join(pieces)
    return source


def restore_line(body: pb.EntryBody) -> str:
    """Return the line as it was; its texts may be spelled in another way if it is not exact."""
    source = body.source
    fillings = sorted(
        (gap, text[1:-1] if place in source.unquoted else text)
        for place, (gap, text) in enumerate(zip(source.gaps, texts_of(body), strict=True))
        if gap != NOT_CUT
    )
    pieces: list[str] = []
    done = 0
    for gap, text in fillings:
        pieces += (source.line[done:gap], text)
        done = gap
    pieces.append(source.line[done:])
    return "".join(pieces)
