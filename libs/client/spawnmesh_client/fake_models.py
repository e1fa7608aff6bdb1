"""The models of a FakeMesh, which answer as a test scripts them."""

import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message, Text, ToolCall
from spawnmesh.model_router.v1.generation_pb2 import STOP_REASON_END, STOP_REASON_TOOL_USE, Completion
from spawnmesh.model_router.v1.model_router_service_pb2 import (
    AttemptStarted,
    GenerateRequest,
    GenerateResponse,
    GenerationEvent,
    TextDelta,
)
from spawnmesh_core.call_blocks import call_block

from spawnmesh_client.turn_messages import text_of

_MODEL = "fake/model"


@dataclass(frozen=True, slots=True)
class ModelStep:
    """The scripted answer of a model: a text, or that of a function of the newest message, and
    calls of tools.
    """

    text: Callable[[str], str]
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()


class FakeModels:
    """Answer each call with the next script, and without one with "done"."""

    def __init__(self) -> None:
        self.script: deque[ModelStep] = deque()
        self.requests: list[GenerateRequest] = []
        self._call_count = 0

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateResponse]:
        """Yield the next answer as a router does."""
        self.requests.append(request)
        step = self.script.popleft() if self.script else ModelStep(lambda _: "done")
        text = step.text(text_of(request.messages[-1]))
        started = AttemptStarted(number=1, model=_MODEL)
        yield GenerateResponse(events=[GenerationEvent(attempt_started=started)])
        content = [ContentBlock(text=Text(text=text))] if text else []
        middle = (len(text) + 1) // 2
        for half in filter(None, (text[:middle], text[middle:])):
            yield GenerateResponse(events=[GenerationEvent(text_delta=TextDelta(text=half))])
        for name, arguments in step.calls:
            self._call_count += 1
            call_id = f"call_{self._call_count}"
            block = call_block(call_id, name, json.dumps(arguments, ensure_ascii=False))
            call = ToolCall(tool_call_id=call_id, name=name, block_json=block)
            yield GenerateResponse(events=[GenerationEvent(tool_call=call)])
            content.append(ContentBlock(tool_call=call))
        said = Message(role=ROLE_ASSISTANT, content=content, model=_MODEL)
        said.usage.input_token_count = sum(len(text_of(one).split()) for one in request.messages)
        said.usage.output_token_count = len(text.split())
        reason = STOP_REASON_TOOL_USE if step.calls else STOP_REASON_END
        completion = Completion(message=said, stop_reason=reason)
        yield GenerateResponse(events=[GenerationEvent(completion=completion)])
