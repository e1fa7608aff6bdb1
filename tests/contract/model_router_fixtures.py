"""A loopback provider that speaks the providers' real wire formats, and the model router in front of it, called through its public RPC."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_model_router.app import open_service
from spawnmesh_model_router.settings import ModelRouterSettings
from spawnmesh_postgres.migrations import migrate
from spawnmesh_runtime.acting import acting_with_token
from spawnmesh_runtime.jwks import JwksFile
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter, TokenVerifier

Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]

CANARY = "sk-canary-5f1d0c9b7e3a"
PNG = b"\x89PNG\r\n\x1a\nnot really"


# --- what the provider does -------------------------------------------------------------------------------------------------------------


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """One chunk of a chat completion, as OpenAI sends it."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-9",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "served-model",
        "choices": [choice],
    }


USAGE_CHUNK = {
    **chunk({}),
    "choices": [],
    "usage": {
        "prompt_tokens": 20,
        "completion_tokens": 5,
        "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 8},
    },
}


def chat(*texts: str, finish: str = "stop") -> list[dict[str, Any]]:
    """The chunks of a whole answer in text."""
    start = chunk({"role": "assistant", "content": ""})
    return [start, *(chunk({"content": text}) for text in texts), chunk({}, finish), USAGE_CHUNK]


def tool_part(index: int, arguments: str, call_id: str | None = None, name: str | None = None) -> dict[str, Any]:
    """A chunk with a part of a tool call; its id and name come with the first part only."""
    function = {"arguments": arguments, **({"name": name} if name else {})}
    part = {"index": index, "function": function, **({"id": call_id, "type": "function"} if call_id else {})}
    return chunk({"tool_calls": [part]})


def sse(*events: dict[str, Any], done: bool = True) -> Answering:
    """A chat completion that streams these chunks and ends as OpenAI ends it."""
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return raw_sse("".join([*lines, "data: [DONE]\n\n" if done else ""]))


def named_sse(*events: dict[str, Any]) -> Answering:
    """Anthropic's stream: each event with its name."""
    return raw_sse("".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events))


def raw_sse(text: str) -> Answering:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = await _begin(request)
        await response.write(text.encode())
        await response.write_eof()
        return response

    return answer


def cut_after(*events: dict[str, Any]) -> Answering:
    """The connection goes away within the answer."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await _begin(request)
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        assert request.transport is not None
        request.transport.close()
        return response

    return answer


def error(status: int, body: Any, **headers: str) -> Answering:
    """An error body; text where it is no JSON."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, str):
            return web.Response(status=status, text=body, content_type="text/html", headers=named)
        return web.json_response(body, status=status, headers=named)

    return answer


def openai_error(status: int, message: str, kind: str, code: str | None, **headers: str) -> Answering:
    return error(status, {"error": {"message": message, "type": kind, "param": None, "code": code}}, **headers)


RATE_LIMITED = openai_error(429, "Rate limit reached for requests", "requests", "rate_limit_exceeded")
BROKEN = openai_error(500, "The server had an error while processing your request.", "server_error", None)
OVERLOADED = error(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


@dataclass
class Stall:
    """Streams these chunks and then nothing more, until the caller hangs up."""

    events: tuple[dict[str, Any], ...] = ()
    begin: bool = True
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        try:
            if self.begin:
                response = await _begin(request)
                for event in self.events:
                    await response.write(f"data: {json.dumps(event)}\n\n".encode())
            self.reached.set()
            await asyncio.Event().wait()
        finally:
            self.hung_up.set()
        raise AssertionError


async def _begin(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    return response


@dataclass
class LoopbackProvider:
    """Answers each model with what is scripted for it, in order; the last one stays."""

    base_url: str = ""
    scripts: dict[str, list[Answering]] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def on(self, model: str, *answers: Answering) -> None:
        self.scripts[model] = list(answers)

    def asked(self, model: str) -> int:
        return sum(body["model"] == model for body in self.bodies)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(
            request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        )
        script = self.scripts[body["model"]]
        answer = script.pop(0) if len(script) > 1 else script[0]
        return await answer(request)


@asynccontextmanager
async def open_loopback_provider() -> AsyncIterator[LoopbackProvider]:
    provider = LoopbackProvider()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", provider.serve)
    app.router.add_post("/v1/messages", provider.serve)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield provider
    finally:
        await runner.cleanup()


# --- the router in front of it ----------------------------------------------------------------------------------------------------------


@dataclass
class Answered:
    """What came of a call: its events, and the refusal that ended it."""

    events: list[pb.GenerateResponse] = field(default_factory=list)
    refusal: MeshError | None = None

    @property
    def kinds(self) -> list[str]:
        return [str(event.WhichOneof("event")) for event in self.events]

    @property
    def text(self) -> str:
        return "".join(event.text_delta.text for event in self.events)

    @property
    def completion(self) -> generation_pb2.Completion:
        assert self.refusal is None, self.refusal
        assert self.events[-1].HasField("completion")
        return self.events[-1].completion

    @property
    def verdicts(self) -> list[tuple[str, str, str]]:
        """(model without provider, verdict, reason) of each candidate."""
        return [
            (
                verdict.model.partition("/")[2],
                generation_pb2.Verdict.Name(verdict.verdict).removeprefix("VERDICT_"),
                generation_pb2.FailoverReason.Name(verdict.reason).removeprefix("FAILOVER_REASON_"),
            )
            for verdict in self.completion.verdicts
        ]

    @property
    def refused(self) -> MeshError:
        assert self.refusal is not None, self.events
        return self.refusal


@dataclass
class Router:
    """A running router; `scripted` and `anthropic` are the names its providers have in this test alone, and so its cooldowns too."""

    peer: Peer
    stub: ModelRouterServiceStub
    token: str
    spans: InMemorySpanExporter

    async def generate(self, model: str = "", *fallbacks: str, timeout: float = 20.0, **fields: Any) -> Answered:
        fields.setdefault("messages", [user("hello")])
        request = pb.GenerateRequest(model=model, fallback_models=fallbacks, **fields)
        answered = Answered()
        with acting_with_token(self.token):
            try:
                async for event in self.peer.stream(self.stub.Generate, request, timeout_seconds=timeout):
                    answered.events.append(event)
            except MeshError as refusal:
                answered.refusal = refusal
        return answered

    async def hang_up_after(self, count: int, model: str, on_event: Callable[[], Awaitable[Any]]) -> None:
        """Reads `count` events, awaits `on_event`, and is gone."""
        request = pb.GenerateRequest(model=model, messages=[user("hello")])
        with acting_with_token(self.token):
            async with aclosing(self.peer.stream(self.stub.Generate, request, timeout_seconds=20)) as events:
                for _ in range(count):
                    await anext(events)
                await on_event()


@dataclass
class World:
    """Makes routers over one provider and one database."""

    provider: LoopbackProvider
    dsn: ServiceDsn
    keys: Path
    folder: Path
    stack: AsyncExitStack
    scripted: str = field(default_factory=lambda: f"s{secrets.token_hex(4)}")
    anthropic: str = field(default_factory=lambda: f"a{secrets.token_hex(4)}")
    environ: dict[str, str] = field(default_factory=lambda: {"KEY": CANARY, "OTHER_KEY": "sk-other-0000000000"})

    def ref(self, model: str) -> str:
        """The whole name of a scripted model."""
        return f"{self.scripted}/{model}"

    def config(self, **changes: Any) -> dict[str, Any]:
        """Two models of an OpenAI-compatible provider, `one` and `two`, and `claude`; `blind` cannot see and has no tools."""
        size = {"context_window": 128000, "max_output": 4096}
        config: dict[str, Any] = {
            "primary": self.ref("one"),
            "aliases": {"fast": self.ref("two")},
            "providers": {
                self.scripted: {
                    "kind": "openai_compatible",
                    "base_url": f"{self.provider.base_url}/v1",
                    "credentials": ["env:KEY"],
                },
                self.anthropic: {
                    "kind": "anthropic",
                    "base_url": self.provider.base_url,
                    "credentials": ["env:KEY"],
                },
            },
            "models": {
                self.ref("one"): {**size, "vision": True},
                self.ref("two"): {**size, "vision": True},
                self.ref("blind"): {**size, "vision": False, "tools": False},
                f"{self.anthropic}/claude": {**size, "vision": True},
            },
        }
        return {**config, **changes}

    async def router(self, config: dict[str, Any] | None = None, **settings: Any) -> Router:
        """A router of its own; attempts are short and not repeated unless the test says otherwise."""
        file = self.folder / f"{secrets.token_hex(4)}.json"
        file.write_text(json.dumps(config or self.config()))
        spans = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(spans))
        defaults = {"tries_before_failover": 1, "tries_at_last_candidate": 1}
        router_settings = ModelRouterSettings(
            database_url=self.dsn.app, config_file=file, jwks_file=self.keys / "jwks.json", **{**defaults, **settings}
        )
        verifier = TokenVerifier(JwksFile(self.keys / "jwks.json"))
        process = Process("model-router", router_settings, None, verifier, provider.get_tracer("test"))
        server = await self.stack.enter_async_context(open_service(process, router_settings, environ=self.environ))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.stack.push_async_callback(server.stop, None)
        caller = Process("client", ProcessSettings(), None, None, provider.get_tracer("test"))
        peer = await self.stack.enter_async_context(open_peer(caller, "model-router", f"127.0.0.1:{port}"))
        tenant = f"t-{secrets.token_hex(4)}"
        token = TokenMinter("client", self.keys / "client.pem").client_token(tenant, "tester", 600)
        return Router(peer, ModelRouterServiceStub(peer.channel), token, spans)


@asynccontextmanager
async def open_world(dsn: ServiceDsn, keys: Path, folder: Path) -> AsyncIterator[World]:
    """A migrated database, a provider, and nothing running yet."""
    await asyncio.to_thread(migrate, dsn.owner, package="spawnmesh_model_router", schema="model_router")
    async with open_loopback_provider() as provider, AsyncExitStack() as stack:
        yield World(provider, dsn, keys, folder, stack)


async def eventually(check: Callable[[], Awaitable[bool]], *, within_seconds: float) -> float:
    """Polls until the check holds; gives the seconds that took, and fails after `within_seconds`."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    async with asyncio.timeout(within_seconds):
        while not await check():
            await asyncio.sleep(0.005)
    return loop.time() - begin


# --- messages ---------------------------------------------------------------------------------------------------------------------------


def text_block(text: str) -> message_pb2.ContentBlock:
    return message_pb2.ContentBlock(text=message_pb2.Text(text=text))


def image_block() -> message_pb2.ContentBlock:
    return message_pb2.ContentBlock(image=message_pb2.Image(mime_type="image/png", data=PNG))


def call_block(call_id: str, name: str, block_json: str) -> message_pb2.ContentBlock:
    call = message_pb2.ToolCall(tool_call_id=call_id, name=name, block_json=block_json)
    return message_pb2.ContentBlock(tool_call=call)


def user(*content: str | message_pb2.ContentBlock) -> message_pb2.Message:
    blocks = [text_block(block) if isinstance(block, str) else block for block in content]
    return message_pb2.Message(role=message_pb2.ROLE_USER, content=blocks)


def assistant(*content: str | message_pb2.ContentBlock) -> message_pb2.Message:
    blocks = [text_block(block) if isinstance(block, str) else block for block in content]
    return message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, content=blocks)


def tool_result(call_id: str, *content: str | message_pb2.ContentBlock, failed: bool = False) -> message_pb2.Message:
    blocks = [text_block(block) if isinstance(block, str) else block for block in content]
    return message_pb2.Message(
        role=message_pb2.ROLE_TOOL_RESULT, tool_call_id=call_id, tool_name="read", content=blocks, is_error=failed
    )
