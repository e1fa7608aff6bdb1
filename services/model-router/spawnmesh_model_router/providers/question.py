"""What is asked of a provider, in terms that both wire formats share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh_core.errors import invalid

from spawnmesh_model_router.domain.calls import decoded
from spawnmesh_model_router.domain.thinking import ThinkingLevel

NO_IMAGE = "[An image was left out here.]"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool with its parameters' JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]
    idempotent: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """An image that is shown because a prompt names it."""

    name: str
    image: message_pb2.Image


@dataclass(frozen=True, slots=True)
class Question:
    """A request, checked once for all candidates. `max_output` is 0 and `thinking` None where the caller does not say."""

    system_prompt: str
    messages: tuple[message_pb2.Message, ...]
    tools: tuple[Tool, ...]
    max_output: int
    thinking: ThinkingLevel | None = None

    @property
    def text_bytes(self) -> int:
        """What there is to read, images aside."""
        said = (
            block.text.text or block.thinking.text or block.tool_call.block_json
            for message in self.messages
            for block in message.content
        )
        return len(self.system_prompt.encode()) + sum(len(text.encode()) for text in said)

    @property
    def has_images(self) -> bool:
        return any(block.HasField("image") for message in self.messages for block in message.content)


def parse_tools(declarations: Sequence[generation_pb2.ToolDeclaration]) -> tuple[Tool, ...]:
    """The tools. Raises MeshError INVALID_REQUEST for one without a name, a name twice, or parameters that are no JSON object."""
    tools: dict[str, Tool] = {}
    for index, declared in enumerate(declarations):
        if not declared.name or declared.name in tools:
            raise invalid(f"tools[{index}].name", "must be there and differ from the others")
        parameters = decoded(declared.parameters_json or '{"type":"object","properties":{}}')
        if not isinstance(parameters, dict):
            raise invalid(f"tools[{index}].parameters_json", "must be a JSON object")
        tools[declared.name] = Tool(declared.name, declared.description, parameters, declared.is_idempotent)
    return tuple(tools.values())


def with_images(question: Question, shown: Sequence[Shown]) -> Question:
    """The same question with the images behind the newest message of a user, each under its name."""
    if not shown:
        return question
    places = [place for place, message in enumerate(question.messages) if message.role == message_pb2.ROLE_USER]
    newest = message_pb2.Message(role=message_pb2.ROLE_USER)
    before, after = question.messages, question.messages[:0]
    if places:
        newest.CopyFrom(question.messages[places[-1]])
        before, after = question.messages[: places[-1]], question.messages[places[-1] + 1 :]
    for one in shown:
        newest.content.add(text=message_pb2.Text(text=f"[{' '.join(one.name.split())}]"))
        newest.content.add(image=one.image)
    return replace(question, messages=(*before, newest, *after))


def with_notice(question: Question, notice: str) -> Question:
    """The same question with sentences of ours behind the system prompt."""
    return replace(question, system_prompt="\n\n".join(filter(None, (question.system_prompt, notice))))


def without_images(question: Question) -> Question:
    """The same question with a note in the place of each image."""
    return replace(question, messages=tuple(map(_without_images, question.messages)))


def _without_images(message: message_pb2.Message) -> message_pb2.Message:
    if not any(block.HasField("image") for block in message.content):
        return message
    stripped = message_pb2.Message()
    stripped.CopyFrom(message)
    for block in stripped.content:
        if block.HasField("image"):
            block.text.text = NO_IMAGE
    return stripped
