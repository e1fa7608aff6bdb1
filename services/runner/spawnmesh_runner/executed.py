"""What the turn that a transcript ends with has done so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import entry_pb2

from spawnmesh_runner.context import calls_of, is_own


@dataclass(frozen=True, slots=True)
class TurnSoFar:
    """`tool_names` are the tools that may have run, in order, each once. `begin_seq` is that of the message that the turn answers.

    `answer_count` counts the run's own answers, `epochs` are those under which it gave them, `model` gave the newest of them.
    """

    tool_names: tuple[str, ...]
    begin_seq: int
    answer_count: int
    epochs: frozenset[int]
    model: str


def turn_so_far(entries: Sequence[entry_pb2.Entry], run_id: str, may_have_run: Callable[[str], bool]) -> TurnSoFar:
    """What the run did since somebody else last spoke.

    A call of a tool that may not have run was refused; one without a result is counted.
    """
    names: list[str] = []
    epochs: set[int] = set()
    answer_count = begin_seq = 0
    model = ""
    for entry in reversed(entries):
        message = entry.body.message
        if message.role == message_pb2.ROLE_ASSISTANT and entry.writer.run_id == run_id:
            names += [call.name for call in reversed(calls_of(message)) if may_have_run(call.name)]
            epochs.add(entry.writer.epoch)
            answer_count += 1
            model = model or message.model
        elif message.role != message_pb2.ROLE_TOOL_RESULT and not is_own(entry, run_id):
            begin_seq = entry.seq
            break
    return TurnSoFar(tuple(dict.fromkeys(reversed(names))), begin_seq, answer_count, frozenset(epochs), model)
