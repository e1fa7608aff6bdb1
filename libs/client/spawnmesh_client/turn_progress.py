"""The progress of a run in its current turn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import entry_pb2

from spawnmesh_client.turn_messages import calls_of
from spawnmesh_client.unfinished_turn import is_own


@dataclass(frozen=True, slots=True)
class TurnProgress:
    """The progress of a turn.

    - `tool_names`: the tools that may have run, in order, each once.
    - `begin_seq`: the seq of the message that the turn answers.
    - `answer_count`: the number of the run's own answers.
    - `epochs`: the epochs under which it gave them.
    - `model`: the model of the newest one.
    """

    tool_names: tuple[str, ...]
    begin_seq: int
    answer_count: int
    epochs: frozenset[int]
    model: str


def turn_progress(
    entries: Sequence[entry_pb2.Entry], run_id: str, may_have_run: Callable[[str], bool]
) -> TurnProgress:
    """Describe what the run did since another writer last spoke.

    Calls of a tool that cannot have run were refused and are not counted. Calls without a result
    are counted.
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
    return TurnProgress(
        tuple(dict.fromkeys(reversed(names))), begin_seq, answer_count, frozenset(epochs), model
    )
