"""The parts of a line of a session file, as its dialect finds them."""

from dataclasses import dataclass

from spawnmesh_core.json_text import Object, String

from spawnmesh_transcript.domain.line_parts import LineParts
from spawnmesh_transcript.domain.turns import Role


@dataclass(frozen=True, slots=True)
class TextBlock:
    node: String


@dataclass(frozen=True, slots=True)
class ThinkingBlock:
    node: String
    signature: String | None = None


@dataclass(frozen=True, slots=True)
class CallBlock:
    """A call of a tool; `block` is stored as the call's block."""

    block: Object
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """An image in base64, which begins after `prefix_length` characters of the string."""

    mime_type: str
    node: String
    prefix_length: int = 0


Block = TextBlock | ThinkingBlock | CallBlock | ImageBlock


@dataclass(frozen=True, slots=True)
class MessagePart:
    """A message. `call_id` is the call whose result it is."""

    role: Role
    blocks: tuple[Block, ...]
    call_id: str = ""
    is_error: bool = False
    model: str = ""


@dataclass(frozen=True, slots=True)
class SummaryPart:
    """The agent's own compaction.

    Models read the texts in place of all lines before `first_kept_id`, and in place of all lines
    before the compaction if that is empty.
    """

    texts: tuple[String, ...]
    first_kept_id: str = ""


Part = MessagePart | SummaryPart


@dataclass(frozen=True, slots=True)
class Reading:
    """A line: its ids in the file, and the messages in it. A line without any is kept, and no
    model reads it.

    An empty `source_id` means that the line has no id; an empty `parent_id` means the beginning of
    the file. If `leaf_id` is set, the branch of the file ends there after this line.
    """

    kind: str
    source_id: str = ""
    parent_id: str = ""
    leaf_id: str | None = None
    parts: tuple[Part, ...] = ()

    @property
    def line_parts(self) -> LineParts:
        """Return the positions of the texts and of the calls, which are not searched as JSON."""
        blocks = [block for part in self.parts if isinstance(part, MessagePart) for block in part.blocks]
        summaries = [text for part in self.parts if isinstance(part, SummaryPart) for text in part.texts]
        signatures = [block.signature for block in blocks if isinstance(block, ThinkingBlock)]
        texts = (
            *(block.node for block in blocks if isinstance(block, TextBlock | ThinkingBlock)),
            *(signature for signature in signatures if signature),
            *summaries,
        )
        return LineParts(
            texts=frozenset(text.start for text in texts),
            calls=frozenset(block.block.start for block in blocks if isinstance(block, CallBlock)),
        )


@dataclass(frozen=True, slots=True)
class FileMemory:
    """The state of a file after a line, for the lines that follow.

    `tip_id` is the line that a line without a parent of its own follows. `first_kept_id` is the
    line from which on the next summary keeps the messages. `is_subagent` is set in the file of a
    sub-agent, and None before the first message. `turn_parents` has the tip before each of the
    newest user turns.
    """

    tip_id: str = ""
    first_kept_id: str = ""
    is_subagent: bool | None = None
    turn_parents: tuple[str, ...] = ()
