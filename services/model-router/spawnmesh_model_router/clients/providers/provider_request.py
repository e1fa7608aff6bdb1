"""The content of a model call, in terms that all wire formats share."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spawnmesh.content.v1 import message_pb2

from spawnmesh_model_router.domain.answer import UsageBounds
from spawnmesh_model_router.domain.images import ImageBoundary, ImageMessage, image_boundary
from spawnmesh_model_router.domain.router_config import Model
from spawnmesh_model_router.domain.thinking import ThinkingLevel
from spawnmesh_model_router.domain.tool_calls import decode_json, parse_arguments

NO_IMAGE = "[An image was left out here.]"
_QUOTED_IMAGE_BYTES = 6144  # More than the classifier reads of a text that quotes an image.

_PROVIDER_PROMPT_TOKENS = 16_384
"""More than any provider adds to a request: its own prompt for tools, and the frame of messages."""
_MAX_IMAGE_TOKENS = 50_000
"""More than any provider counts for an image."""


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool with the JSON Schema of its parameters, which has `schema_bytes` as JSON."""

    name: str
    description: str
    parameters: dict[str, Any]
    schema_bytes: int
    idempotent: bool = False


@dataclass(frozen=True, slots=True)
class NamedImage:
    """An image that the prompt names."""

    name: str
    image: message_pb2.Image


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """The content of a call, validated once for all candidates.

    `max_output` is 0 and `thinking` is None if the caller gives none. `named_images` are not part
    of `messages` until `with_named_images` adds them.
    """

    system_prompt: str
    messages: tuple[message_pb2.Message, ...]
    tools: tuple[ToolDefinition, ...]
    max_output: int
    thinking: ThinkingLevel | None = None
    named_images: tuple[NamedImage, ...] = ()

    @property
    def text_bytes(self) -> int:
        """Return the size of all text, tool declarations included."""
        content = (
            block.text.text or block.thinking.text or block.tool_call.block_json
            for message in self.messages
            for block in message.content
        )
        declared = (text for tool in self.tools for text in (tool.name, tool.description))
        texts = (self.system_prompt, *content, *declared)
        return sum(len(text.encode()) for text in texts) + sum(tool.schema_bytes for tool in self.tools)

    @property
    def content_bytes(self) -> int:
        """Return about the size of all content, images included."""
        declared = sum(len(tool.description) + tool.schema_bytes for tool in self.tools)
        return len(self.system_prompt) + declared + self._message_bytes

    @property
    def _message_bytes(self) -> int:
        messages = sum(message.ByteSize() for message in self.messages)
        return messages + sum(one.image.ByteSize() for one in self.named_images)

    def usage_bounds(self, model: Model) -> UsageBounds:
        """Return the most tokens that a call of the model can use for this request."""
        asked = self.text_bytes + self._message_bytes + self.image_count * _MAX_IMAGE_TOKENS
        output = min(self.max_output, model.max_output) if self.max_output else model.max_output
        return UsageBounds(min(asked + _PROVIDER_PROMPT_TOKENS, model.context_window), output)

    @property
    def last_answer_provider(self) -> str:
        """Return the provider of the newest answer in the conversation; empty if it is unknown."""
        models = (
            message.model for message in reversed(self.messages) if message.role == message_pb2.ROLE_ASSISTANT
        )
        return next(models, "").partition("/")[0].lower()

    @property
    def image_count(self) -> int:
        """Return the number of images, those that the prompt names included."""
        shown = sum(block.HasField("image") for message in self.messages for block in message.content)
        return shown + len(self.named_images)

    @property
    def image_boundary(self) -> ImageBoundary | None:
        """Return the boundary that the conversation sets for its images; None if it sets none."""
        if not self.image_count:
            return None
        naming = {_first_index(self.messages, named.name) for named in self.named_images}
        return image_boundary(
            _image_message(message, is_naming=index in naming) for index, message in enumerate(self.messages)
        )

    def texts(self) -> Iterator[str]:
        """Yield every text that goes to the provider, for the prompt-echo filter.

        Each text inside JSON comes by itself. Of an image, the beginning of its base64 form is a
        text.
        """
        yield from (self.system_prompt, *self.names())
        for tool in self.tools:
            yield from (tool.description, *_leaves(tool.parameters))
        for message in self.messages:
            for block in message.content:
                yield from (block.text.text, block.thinking.text, block.thinking.signature)
                yield from _leaves(decode_json(block.tool_call.block_json))
                yield from _leaves(parse_arguments(block.tool_call.block_json))
                yield b64encode(block.image.data[:_QUOTED_IMAGE_BYTES]).decode()

    def names(self) -> Iterator[str]:
        """Yield the texts that are ids, names of tools or types of images."""
        yield from (tool.name for tool in self.tools)
        for message in self.messages:
            yield from (message.tool_call_id, message.tool_name)
            for block in message.content:
                yield from (block.tool_call.tool_call_id, block.tool_call.name, block.image.mime_type)


def _leaves(value: Any) -> Iterator[str]:
    """Yield the keys, texts and numbers of a JSON value, in order."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            pending += [each for item in reversed(one.items()) for each in reversed(item)]
        elif isinstance(one, list):
            pending += reversed(one)
        elif one is not None:
            yield str(one)


def with_named_images(request: ProviderRequest) -> ProviderRequest:
    """Add the named images to the newest message of a user, each after its name."""
    if not request.named_images:
        return request
    indexes = [
        index for index, message in enumerate(request.messages) if message.role == message_pb2.ROLE_USER
    ]
    newest = message_pb2.Message(role=message_pb2.ROLE_USER)
    before, after = request.messages, request.messages[:0]
    if indexes:
        newest.CopyFrom(request.messages[indexes[-1]])
        before, after = request.messages[: indexes[-1]], request.messages[indexes[-1] + 1 :]
    for named in request.named_images:
        newest.content.add(text=message_pb2.Text(text=f"[{' '.join(named.name.split())}]"))
        newest.content.add(image=named.image)
    return replace(request, messages=(*before, newest, *after), named_images=())


def with_notice(request: ProviderRequest, notice: str) -> ProviderRequest:
    """Append the notice to the system prompt."""
    return replace(request, system_prompt="\n\n".join(filter(None, (request.system_prompt, notice))))


def without_images(request: ProviderRequest, last_index: int | None = None) -> ProviderRequest:
    """Replace each image by a note, and drop the named images.

    With `last_index`, keep the images of the messages behind it, and those that such a message is
    the first one to name.
    """
    count = len(request.messages) if last_index is None else last_index + 1
    return replace(
        request,
        messages=(*map(_without_images, request.messages[:count]), *request.messages[count:]),
        named_images=tuple(
            named for named in request.named_images if _first_index(request.messages, named.name) >= count
        ),
    )


def _image_message(message: message_pb2.Message, *, is_naming: bool) -> ImageMessage:
    answered = message.role == message_pb2.ROLE_ASSISTANT
    return ImageMessage(
        is_user=message.role == message_pb2.ROLE_USER,
        has_images=is_naming or any(block.HasField("image") for block in message.content),
        provider=message.model.partition("/")[0].lower() if answered else "",
        image_provider=message.image_provider.lower() if answered else "",
    )


def _first_index(messages: Sequence[message_pb2.Message], name: str) -> int:
    """Return the index of the first message of a user that names the image.

    Without one it is the newest message of a user, or the end if there is no user.
    """
    users = [index for index, message in enumerate(messages) if message.role == message_pb2.ROLE_USER]
    naming = (i for i in users if any(name in block.text.text for block in messages[i].content))
    return next(naming, users[-1] if users else len(messages) - 1)


def _without_images(message: message_pb2.Message) -> message_pb2.Message:
    if not any(block.HasField("image") for block in message.content):
        return message
    stripped = message_pb2.Message()
    stripped.CopyFrom(message)
    for block in stripped.content:
        if block.HasField("image"):
            block.text.text = NO_IMAGE
    return stripped
