"""The promises of the deltas of Generate, checked on the events of one answered attempt."""

import json
from collections.abc import Sequence

from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.call_blocks import arguments_in
from spawnmesh_model_router.domain.tool_calls import decode_json


def check_deltas(events: Sequence[pb.GenerationEvent]) -> None:
    """Check an attempt that completes: its thinking, and the order and the arguments of its calls."""
    message = events[-1].completion.message
    thoughts = [block.thinking.text for block in message.content if block.HasField("thinking")]
    assert thinking_of(events) == "".join(thoughts)
    assert all(event.thinking_delta.text for event in events if event.HasField("thinking_delta"))
    check_order(events)
    for call in (block.tool_call for block in message.content if block.HasField("tool_call")):
        assert any(event.tool_call == call for event in events)
        shown = shown_arguments(events, call.tool_call_id)
        if shown is not None:
            arguments = arguments_of(call)
            text = decode_json(arguments)
            # What is no JSON became a string.
            full = text if isinstance(text, str) and decode_json(shown.strip()) is None else arguments
            assert full.strip().startswith(shown.strip()), (full, shown)


def check_order(events: Sequence[pb.GenerationEvent]) -> None:
    """Check that the pieces of each call come together, from its first one on, and not behind it."""
    begun: dict[str, str] = {}
    ended: set[str] = set()
    newest = ""
    for event in events:
        piece = event.tool_call_delta
        if event.HasField("tool_call"):
            ended.add(event.tool_call.tool_call_id)
            assert begun.get(event.tool_call.tool_call_id, event.tool_call.name) == event.tool_call.name
        if not event.HasField("tool_call_delta"):
            continue
        assert piece.tool_call_id
        assert piece.name
        assert piece.begins_call is (piece.tool_call_id not in begun)
        assert piece.begins_call or (piece.tool_call_id == newest and piece.arguments)
        assert piece.name == begun.setdefault(piece.tool_call_id, piece.name)
        assert piece.tool_call_id not in ended
        newest = piece.tool_call_id


def thinking_of(events: Sequence[pb.GenerationEvent]) -> str:
    """Return the text of all thinking deltas."""
    return "".join(event.thinking_delta.text for event in events)


def shown_arguments(events: Sequence[pb.GenerationEvent], call_id: str) -> str | None:
    """Return the arguments that the pieces of a call show; None if it has no piece."""
    pieces = [event.tool_call_delta for event in events if event.tool_call_delta.tool_call_id == call_id]
    return "".join(piece.arguments for piece in pieces) if pieces else None


def arguments_of(call: message_pb2.ToolCall) -> str:
    """Return the text of the arguments in the block of a call."""
    arguments = arguments_in(call.tool_call_id, call.name, call.block_json)
    assert arguments != call.block_json
    assert json.loads(arguments) == json.loads(call.block_json)["arguments"]
    return arguments
