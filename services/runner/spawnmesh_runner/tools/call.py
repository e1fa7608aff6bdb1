"""One tool call, from the model's block to the result it reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from pydantic import ValidationError
from spawnmesh.content.v1 import message_pb2
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_materialize import MaterializeError

from spawnmesh_runner.context import text_of
from spawnmesh_runner.domain import LOST
from spawnmesh_runner.tools.tool import AnyTool, Scope, ToolRefused, refused_path

log = structlog.get_logger()

LEFT_OUT = "[left out: "
"""What a text begins with that says why it stands in the place of arguments. It is no JSON: no tool is called with it."""

BLOCKED = "BLOCKED"
"""The reason of a call that a plugin did not let be made."""

_KEPT_BACK = (f"{BLOCKED}: ", f"{Reason.PLUGIN_FAILED.value}: ")
_PLACES = ("arguments", "input", "args")  # Where providers put the arguments in a block.
_TAKEN_OUT = (
    "$redacted"  # In what stands for a secret that was masked, and for a file's content, where the call was stored.
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the model reads of a call. `error_reason` is empty where it succeeded."""

    text: str
    error_reason: str = ""


async def run_call(tool: AnyTool, call: message_pb2.ToolCall, scope: Scope) -> Outcome:
    """Runs one call; whatever goes wrong is its outcome, except for the loss of the run, which is raised."""
    try:
        result = await tool.run(scope, tool.parse(call_arguments(call)))
        return Outcome(result if isinstance(result, str) else result_text(result))
    except ValidationError as error:
        return refusal("INVALID_ARGUMENTS", _violations(error))
    except ToolRefused as error:
        return Outcome(str(error), error.reason)
    except MaterializeError as error:
        refused = refused_path(error)
        return Outcome(str(refused), refused.reason)
    except MeshError as error:
        if refused_with(error, *LOST):
            raise
        return refusal(error.reason.value, error.message)
    except Exception:
        log.exception("tool failed", tool=tool.name)
        return refusal("TOOL_FAILED", "the tool failed by a defect of its own; calling it again so will not help")


def refusal(reason: str, message: str) -> Outcome:
    """The outcome of a call that was not done."""
    return Outcome(f"{reason}: {message}", reason)


def was_kept_back(result: message_pb2.Message) -> bool:
    """Whether it is the result of a call that plugins did not let be made. What a tool itself answered has another reason in front."""
    return result.is_error and text_of(result).startswith(_KEPT_BACK)


def call_arguments(call: message_pb2.ToolCall) -> object:
    """The arguments of a call, from `arguments`, `input` or `args`, as an object or as JSON in a string. Raises ToolRefused."""
    try:
        block = json.loads(call.block_json)
        arguments = block.get(_place_in(block), {}) if isinstance(block, dict) else None
        if isinstance(arguments, str) and arguments.startswith(LEFT_OUT):
            raise ToolRefused("INVALID_ARGUMENTS", f"the arguments are {arguments.strip('[]')}")
        parsed = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        raise ToolRefused("INVALID_ARGUMENTS", "the arguments are not JSON that can be read") from error
    return {} if parsed is None else parsed


def call_with(call: message_pb2.ToolCall, arguments: object, **more: object) -> message_pb2.ToolCall:
    """The call in the shape it came in, with other arguments and something more in its block, which is a JSON object.

    An object of arguments is written as text where the call's own was; a text stands as it is.
    """
    block = json.loads(call.block_json)
    place = _place_in(block)
    is_text = isinstance(block.get(place), str) and not isinstance(arguments, str)
    kept = {name: value for name, value in block.items() if name not in _PLACES}
    made = {**kept, place: json.dumps(arguments) if is_text else arguments, **more}
    return message_pb2.ToolCall(tool_call_id=call.tool_call_id, name=call.name, block_json=json.dumps(made))


def is_as_made(call: message_pb2.ToolCall) -> bool:
    """Whether nothing was taken out of the call where it was stored, so that who reads it there can make it again."""
    return _TAKEN_OUT not in call.block_json


def _place_in(block: Mapping[str, object]) -> str:
    return next((place for place in _PLACES if place in block), _PLACES[0])


def result_text(result: Mapping[str, object]) -> str:
    """JSON that any wire takes: a file name that is no UTF-8 is escaped."""
    return json.dumps(result, ensure_ascii=False).encode("utf-8", "backslashreplace").decode("utf-8")


def _violations(error: ValidationError) -> str:
    """Where and what, never the value: it may be a whole file."""
    lines = [f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}" for item in error.errors()]
    return "; ".join(lines[:10])
