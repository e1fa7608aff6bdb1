"""Files that a run wrote on an earlier runner: a workspace is removed with its runner."""

from dataclasses import dataclass, field

from spawnmesh.content.v1 import message_pb2
from spawnmesh_client.turn_messages import calls_of

from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.tools.calling.call_arguments import call_arguments
from spawnmesh_runner.tools.fetch_files import FETCH_FILES
from spawnmesh_runner.tools.write_file import WRITE_FILE

_MAX_NAMES = 20
_MAX_NAME_CHARACTERS = 200


@dataclass(slots=True)
class LostFiles:
    """Lost files, collected from the run's messages, newest first.

    A call without a result is not counted: it is made again.
    """

    paths: dict[str, None] = field(default_factory=dict)
    has_fetched: bool = False
    results: dict[str, message_pb2.Message] = field(default_factory=dict)

    def add_message(self, message: message_pb2.Message) -> None:
        """Add a message that is older than those added before."""
        if message.role == message_pb2.ROLE_TOOL_RESULT:
            self.results[message.tool_call_id] = message
        elif message.role == message_pb2.ROLE_ASSISTANT:
            for call in reversed(calls_of(message)):
                result = self.results.get(call.tool_call_id)
                if result is None or result.is_error:
                    continue
                self.has_fetched = self.has_fetched or call.name == FETCH_FILES.name
                if call.name == WRITE_FILE.name:
                    made, *_ = (*calls_of(result), call)  # A plugin may have changed the path.
                    self.paths.update(dict.fromkeys(_path_of(made)))
            self.results.clear()

    def note(self, published_count: int) -> str:
        """Tell the model which files are lost; empty if there are none.

        `published_count` is the number of files that the run had published before. The note stays
        for the rest of the run, whatever the run writes again.
        """
        if not self.paths and not self.has_fetched:
            return ""
        sentences = ["Your earlier runner was replaced, and its workspace is gone."]
        if self.has_fetched:
            sentences.append("What fetch_files brought there is gone, too: fetch it again.")
        if published_count:
            sentences.append(
                f"The files that you published ({published_count}) are kept: fetch_files brings a set of them"
                " back."
            )
        if not self.paths:
            return " ".join(sentences)
        names = [f"- {_shown(path)}" for path in list(self.paths)[:_MAX_NAMES]]
        more = f"\n...and {len(self.paths) - len(names)} more" if len(self.paths) > len(names) else ""
        sentences.append(
            "Of the files that you wrote there, the workspace that you have now holds only those that you"
            " have written again since. It holds the attached files. The names that you wrote to before,"
            " newest first:"
        )
        return "\n".join((" ".join(sentences), "```", *names, "```" + more))


def _path_of(call: message_pb2.ToolCall) -> list[str]:
    try:
        arguments = call_arguments(call)
    except ToolRefused:
        return []
    path = arguments.get("path") if isinstance(arguments, dict) else None
    return [path] if isinstance(path, str) else []


def _shown(path: str) -> str:
    """Return the path on one line, without characters that could close the code fence."""
    shown = "".join(char if char.isprintable() and char != "`" else f"\\u{{{ord(char):x}}}" for char in path)
    return shown if len(shown) <= _MAX_NAME_CHARACTERS else shown[:_MAX_NAME_CHARACTERS] + "..."
