"""Files that a run wrote before this runner had it: a workspace ends with its runner."""

from dataclasses import dataclass, field

from spawnmesh.content.v1 import message_pb2

from spawnmesh_runner.context import calls_of
from spawnmesh_runner.tools.call import call_arguments
from spawnmesh_runner.tools.tool import ToolRefused
from spawnmesh_runner.tools.write_file import WRITE_FILE

_MAX_NAMES = 20
_MAX_NAME_CHARACTERS = 200


@dataclass(slots=True)
class LostFiles:
    """What is learnt of them from the run's messages, newest first. A call without a result is not counted: it is made again."""

    paths: dict[str, None] = field(default_factory=dict)
    results: dict[str, message_pb2.Message] = field(default_factory=dict)

    def read(self, message: message_pb2.Message) -> None:
        """Takes in the message before those that were read."""
        if message.role == message_pb2.ROLE_TOOL_RESULT:
            self.results[message.tool_call_id] = message
        elif message.role == message_pb2.ROLE_ASSISTANT:
            for call in reversed(calls_of(message)):
                result = self.results.get(call.tool_call_id)
                if call.name == WRITE_FILE.name and result is not None and not result.is_error:
                    made, *_ = (*calls_of(result), call)  # Plugins may have given it another path.
                    self.paths.update(dict.fromkeys(_path_of(made)))
            self.results.clear()

    @property
    def note(self) -> str:
        """What the model has to know of them; empty where there are none. It holds for the rest of the run, whatever is written."""
        if not self.paths:
            return ""
        names = [f"- {_shown(path)}" for path in list(self.paths)[:_MAX_NAMES]]
        more = f"\n...and {len(self.paths) - len(names)} more" if len(self.paths) > len(names) else ""
        return "\n".join(
            (
                "Your earlier runner was replaced, and its workspace is gone: of what you wrote there, only what you have written again since is"
                " in the workspace that you have now. Attached files are there. The names that you wrote to before, newest first:",
                "```",
                *names,
                "```" + more,
            )
        )


def _path_of(call: message_pb2.ToolCall) -> list[str]:
    try:
        arguments = call_arguments(call)
    except ToolRefused:
        return []
    path = arguments.get("path") if isinstance(arguments, dict) else None
    return [path] if isinstance(path, str) else []


def _shown(path: str) -> str:
    """On one line, without what could close the fence."""
    shown = "".join(char if char.isprintable() and char != "`" else f"\\u{{{ord(char):x}}}" for char in path)
    return shown if len(shown) <= _MAX_NAME_CHARACTERS else shown[:_MAX_NAME_CHARACTERS] + "..."
