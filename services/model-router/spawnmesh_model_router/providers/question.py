"""What is asked of a provider, in terms that both wire formats share."""

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh_core.errors import invalid

from spawnmesh_model_router.domain.calls import arguments_of, decoded
from spawnmesh_model_router.domain.thinking import ThinkingLevel

NO_IMAGE = "[An image was left out here.]"
_QUOTED_IMAGE_BYTES = 6144  # More than is read of any text that would quote them.


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
        """What there is to read, the declarations of tools too, and images aside."""
        said = (
            block.text.text or block.thinking.text or block.tool_call.block_json
            for message in self.messages
            for block in message.content
        )
        declared = (
            part
            for tool in self.tools
            for part in (tool.name, tool.description, json.dumps(tool.parameters, ensure_ascii=False))
        )
        return len(self.system_prompt.encode()) + sum(len(text.encode()) for text in (*said, *declared))

    def texts(self) -> Iterator[str]:
        """Every text that goes to the provider, those inside of JSON each for itself, and how images begin as they are sent."""
        yield from (self.system_prompt, *self.names())
        for tool in self.tools:
            yield from (tool.description, *_leaves(tool.parameters))
        for message in self.messages:
            for block in message.content:
                yield from (block.text.text, block.thinking.text, block.thinking.signature)
                yield from _leaves(decoded(block.tool_call.block_json))
                yield from _leaves(arguments_of(block.tool_call.block_json))
                yield b64encode(block.image.data[:_QUOTED_IMAGE_BYTES]).decode()

    def names(self) -> Iterator[str]:
        """What of them is an id, the name of a tool, or the type of an image."""
        yield from (tool.name for tool in self.tools)
        for message in self.messages:
            yield from (message.tool_call_id, message.tool_name)
            for block in message.content:
                yield from (block.tool_call.tool_call_id, block.tool_call.name, block.image.mime_type)

    @property
    def spoke_last(self) -> str:
        """The provider whose model gave the newest answer; empty where that is not known."""
        said = (message.model for message in reversed(self.messages) if message.role == message_pb2.ROLE_ASSISTANT)
        return next(said, "").partition("/")[0].lower()

    @property
    def image_count(self) -> int:
        return sum(block.HasField("image") for message in self.messages for block in message.content)

    @property
    def has_images(self) -> bool:
        return any(block.HasField("image") for message in self.messages for block in message.content)


def _leaves(value: Any) -> Iterator[str]:
    """What a value of JSON says, in order: its keys, texts and numbers."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            pending += [each for item in reversed(one.items()) for each in reversed(item)]
        elif isinstance(one, list):
            pending += reversed(one)
        elif one is not None:
            yield str(one)


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
