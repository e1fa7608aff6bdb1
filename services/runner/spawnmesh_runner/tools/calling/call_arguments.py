"""The arguments of a tool call, as the tools of the runner get them."""

from spawnmesh.content.v1 import message_pb2
from spawnmesh_core import call_arguments as blocks
from spawnmesh_core.call_arguments import LEFT_OUT, ArgumentsUnreadable

from spawnmesh_runner.domain.tools import ToolRefused

__all__ = ["LEFT_OUT", "call_arguments", "is_unredacted", "replace_arguments"]


def call_arguments(call: message_pb2.ToolCall) -> object:
    """Return the arguments of a call, as `arguments_of` its block. Raises ToolRefused."""
    try:
        return blocks.arguments_of(call.block_json)
    except ArgumentsUnreadable as error:
        raise ToolRefused("INVALID_ARGUMENTS", str(error)) from error


def replace_arguments(call: message_pb2.ToolCall, arguments: object, **more: object) -> message_pb2.ToolCall:
    """Return the call with other arguments, as `with_arguments` its block."""
    block = blocks.with_arguments(call.block_json, arguments, **more)
    return message_pb2.ToolCall(tool_call_id=call.tool_call_id, name=call.name, block_json=block)


def is_unredacted(call: message_pb2.ToolCall) -> bool:
    """Return True if the stored call has no redaction, so that it can be made again from it."""
    return blocks.is_unredacted(call.block_json)
