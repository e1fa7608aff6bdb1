"""The error that stands in place of a missing tool result."""

from functools import cache

from spawnmesh.content.v1 import message_pb2 as content_pb

from spawnmesh_transcript.domain.token_vocabularies import Measure
from spawnmesh_transcript.operations.bodies.tokens import count_tokens

SYNTHETIC_RESULT_TEXT = (
    "No result of this call is recorded: the run ended before it came, or it was lost. "
    "Its effects are unknown."
)

_STORED = Measure()


@cache
def synthetic_token_count(measure: Measure = _STORED) -> int:
    """Return the tokens of a synthetic result."""
    return measure.of(count_tokens(SYNTHETIC_RESULT_TEXT, measure.vocabulary), measure.vocabulary)


def synthetic_result(caller: content_pb.Message, call_id: str) -> content_pb.Message:
    """Return the error that answers the call of this trimmed id in the message that made it."""
    call = next(
        block.tool_call
        for block in caller.content
        if block.HasField("tool_call") and block.tool_call.tool_call_id.strip() == call_id
    )
    return content_pb.Message(
        role=content_pb.ROLE_TOOL_RESULT,
        tool_call_id=call.tool_call_id,
        tool_name=call.name,
        is_error=True,
        content=[content_pb.ContentBlock(text=content_pb.Text(text=SYNTHETIC_RESULT_TEXT))],
    )


def is_synthetic_result(message: content_pb.Message) -> bool:
    """Return whether a tool result is a synthetic one that came back, as a resuming harness may
    send it.
    """
    return message.is_error and [block.text.text for block in message.content] == [SYNTHETIC_RESULT_TEXT]
