"""A tool call, from the model's block to the text that the model reads."""

from dataclasses import dataclass

import structlog
from pydantic import ValidationError
from spawnmesh.content.v1 import message_pb2
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_materialize import MaterializeError

from spawnmesh_runner.domain.failure import is_disk_full
from spawnmesh_runner.domain.reasons import RUN_LOST, may_succeed_later
from spawnmesh_runner.domain.tools import RunParked, ToolRefused, TurnInterrupted
from spawnmesh_runner.tools.calling.call_arguments import call_arguments
from spawnmesh_runner.tools.calling.tool import (
    AnyTool,
    CallScope,
    TextResult,
    Tool,
    json_line,
    refused_path,
)

log = structlog.get_logger()

BLOCKED = "BLOCKED"
"""The reason of a call that a plugin blocked."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The result that the model reads: a line of JSON, which may be missing, and a text.

    `error_reason` is empty if the call succeeded.
    """

    text: str
    error_reason: str = ""
    facts: str = ""

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.facts, self.text))) or ("",)

    @property
    def whole_text(self) -> str:
        return "\n".join(self.blocks)


async def execute_call(tool: AnyTool, call: message_pb2.ToolCall, scope: CallScope) -> ToolOutcome:
    """Make one call. Every failure becomes its outcome.

    Raised are only the loss of the run, RunParked, TurnInterrupted by a tool that cuts its work
    itself, and failures that no other call of the model avoids: a full disk, and an outage that a
    tool of the mesh met. The run then waits, and a runner makes the call again.
    """
    try:
        result = await tool.execute(scope, tool.parse(call_arguments(call)))
        if isinstance(result, TextResult):
            return ToolOutcome(result.text, facts=json_line(result.facts))
        return ToolOutcome(result if isinstance(result, str) else json_line(result))
    except (ValidationError, ToolRefused) as error:
        return _refused(error)
    except (RunParked, TurnInterrupted):
        raise
    except MaterializeError as error:
        if is_disk_full(error):
            raise
        refused = refused_path(error)
        return ToolOutcome(str(refused), refused.reason)
    except MeshError as error:
        if refused_with(error, *RUN_LOST) or _is_repeated_later(tool, error):
            raise
        return refusal(error.reason.value, error.message)
    except Exception:
        log.exception("tool_failed", tool=tool.name)
        return refusal(
            "TOOL_FAILED", "the tool failed by a defect of its own; the same call again will not help"
        )


def argument_refusal(tool: AnyTool, call: message_pb2.ToolCall) -> ToolOutcome | None:
    """Return the refusal of arguments that the tool does not take; None if it takes them."""
    try:
        tool.parse(call_arguments(call))
    except (ValidationError, ToolRefused) as error:
        return _refused(error)
    return None


def _refused(error: ValidationError | ToolRefused) -> ToolOutcome:
    if isinstance(error, ValidationError):
        return refusal("INVALID_ARGUMENTS", _violations(error))
    return ToolOutcome(str(error), error.reason)


def refusal(reason: str, message: str) -> ToolOutcome:
    """Return the outcome of a call that was not made."""
    return ToolOutcome(f"{reason}: {message}", reason)


def _is_repeated_later(tool: AnyTool, error: MeshError) -> bool:
    """Return whether the run waits and makes the call again.

    A call that took too long may always do so: the model can ask for less.
    """
    is_outage = may_succeed_later(error) and error.reason is not Reason.DEADLINE_EXCEEDED
    return is_outage and isinstance(tool, Tool) and tool.idempotent


def _violations(error: ValidationError) -> str:
    """Name the place and the rule, but never the value: it may be a complete file."""
    lines = [f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}" for item in error.errors()]
    return "; ".join(lines[:10])
