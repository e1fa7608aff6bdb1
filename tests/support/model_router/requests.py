"""Build conversations and provider requests."""

from base64 import b64encode

from spawnmesh.content.v1 import message_pb2 as content
from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest, ToolDefinition

PNG = b"\x89PNG"
DATA = b64encode(PNG).decode()
READ = ToolDefinition("read", "Reads.", {"type": "object"}, schema_bytes=18)


def text(words: str) -> content.ContentBlock:
    return content.ContentBlock(text=content.Text(text=words))


def image() -> content.ContentBlock:
    return content.ContentBlock(image=content.Image(mime_type="image/png", data=PNG))


def thinking(words: str, signature: str) -> content.ContentBlock:
    return content.ContentBlock(thinking=content.Thinking(text=words, signature=signature))


def call(call_id: str, arguments: str = '{"path":"a"}') -> content.ContentBlock:
    block = f'{{"type":"toolCall","id":"{call_id}","name":"read","arguments":{arguments}}}'
    return content.ContentBlock(
        tool_call=content.ToolCall(tool_call_id=call_id, name="read", block_json=block)
    )


def user(*blocks: content.ContentBlock) -> content.Message:
    return content.Message(role=content.ROLE_USER, content=blocks)


def assistant(*blocks: content.ContentBlock) -> content.Message:
    return content.Message(role=content.ROLE_ASSISTANT, content=blocks)


def result(call_id: str, *blocks: content.ContentBlock, failed: bool = False) -> content.Message:
    return content.Message(
        role=content.ROLE_TOOL_RESULT, tool_call_id=call_id, content=blocks, is_error=failed
    )


def make_request(
    *messages: content.Message, system: str = "", tools: tuple[ToolDefinition, ...] = (), most: int = 0
) -> ProviderRequest:
    return ProviderRequest(system, messages, tools, most)


TALK = (
    user(text("hi")),
    assistant(thinking("hm", "sig"), text("I look."), call("c1"), call("c2", '"cut {"')),
    result("c1", text("one"), image()),
    result("c2", text("boom"), failed=True),
    user(text("go on")),
)
