"""The model router in front of a loopback provider, called through its public RPC."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2, routing_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_model_router.app import open_service
from spawnmesh_model_router.settings import ModelRouterSettings
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.jwks import JwksFile
from spawnmesh_runtime.metrics import NO_METRICS, Metrics
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter, TokenVerifier

from tests.support import tenancy
from tests.support.model_router.provider import LoopbackProvider, open_loopback_provider
from tests.support.postgres.migrating import migrate_once
from tests.support.waiting import DAY, time_left_in

if TYPE_CHECKING:  # The stubs' generator names it in the type stub alone.
    from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceAsyncStub

CANARY = "sk-canary-5f1d0c9b7e3a"
PNG = b"\x89PNG\r\n\x1a\nnot really"


@dataclass
class Answered:
    """The result of a call: its events, and the error that ended it."""

    events: list[pb.GenerationEvent] = field(default_factory=list)
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
        """Return (model without provider, verdict, reason) of each candidate."""
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
    """A running router.

    `scripted` and `anthropic` are names of providers that only this test uses, so it has its own
    cooldowns.
    """

    peer: Peer
    stub: "ModelRouterServiceAsyncStub"
    token: str
    spans: InMemorySpanExporter
    target: str
    keys: Path
    tenant: str

    @property
    def operator(self) -> str:
        """Return a token of an operator."""
        return TokenMinter("client", self.keys / "client.pem").admin_token("root", 600)

    async def call(self, method: str, request: Any, token: str = "") -> Any:
        """Call a unary RPC by its name, as the tenant's client or with another token.

        Raises MeshError.
        """
        with use_token(token or self.token):
            return await self.peer.unary(getattr(self.stub, method), request, timeout_seconds=60)

    async def prepare(self, version: int, **policy: Any) -> int:
        """Send the tenant's policy, as the session service does. Return the version that holds.

        Versions of the test begin at 1. The tenant was prepared before, without limits.
        """
        return await self.send_policy(version + 1, **policy) - 1

    async def send_policy(self, version: int, **policy: Any) -> int:
        """Send the tenant's policy with this version. Return the version that holds.

        A day in which spending is to be counted goes on for a while.
        """
        if "max_spend_micros_per_day" in policy:
            await time_left_in(DAY)
        token = TokenMinter("session", self.keys / "session.pem").service_token(self.tenant)
        with use_token(token):
            return await tenancy.prepare(self.peer, version, routing=routing_pb2.RoutingPolicy(**policy))

    async def send_settings(self, version: int, **settings: Any) -> None:
        """Send settings of the tenant that are not its policy."""
        token = TokenMinter("session", self.keys / "session.pem").service_token(self.tenant)
        with use_token(token):
            await tenancy.prepare(self.peer, version, **settings)

    async def for_tenant(self, tenant: str) -> "Router":
        """Return this router as another tenant calls it, prepared without limits."""
        token = TokenMinter("client", self.keys / "client.pem").client_token(tenant, "tester", 600)
        router = replace(self, tenant=tenant, token=token)
        await router.send_policy(1)
        return router

    async def explain(self, model: str = "", *fallbacks: str, **fields: Any) -> list[tuple[str, str]]:
        """Return (model without provider, verdict) of each candidate."""
        fields.setdefault("messages", [user("hello")])
        request = pb.GenerateRequest(model=model, fallback_models=fallbacks, **fields)
        answer = await self.call("ExplainRoute", pb.ExplainRouteRequest(request=request))
        return [
            (
                candidate.model.partition("/")[2],
                generation_pb2.Verdict.Name(candidate.verdict).removeprefix("VERDICT_"),
            )
            for candidate in answer.candidates
        ]

    async def generate(
        self, model: str = "", *fallbacks: str, timeout: float = 20.0, **fields: Any
    ) -> Answered:
        """Call Generate. A cooldown, which lasts for half a minute or longer, outlasts the deadline."""
        fields.setdefault("messages", [user("hello")])
        request = pb.GenerateRequest(model=model, fallback_models=fallbacks, **fields)
        answered = Answered()
        with use_token(self.token):
            try:
                async for answer in self.peer.stream(self.stub.Generate, request, timeout_seconds=timeout):
                    assert answer.events
                    answered.events += answer.events
            except MeshError as refusal:
                answered.refusal = refusal
        return answered

    async def hang_up_after(self, count: int, model: str, on_event: Callable[[], Awaitable[Any]]) -> None:
        """Read `count` events, await `on_event`, and cancel the call."""
        request = pb.GenerateRequest(model=model, messages=[user("hello")])
        with use_token(self.token):
            async with aclosing(
                self.peer.stream(self.stub.Generate, request, timeout_seconds=3600)
            ) as answers:
                while count > 0:
                    count -= len((await anext(answers)).events)
                await on_event()


@dataclass
class World:
    """Starts routers over one provider and one database."""

    provider: LoopbackProvider
    dsn: ServiceDsn
    keys: Path
    folder: Path
    stack: AsyncExitStack
    # Budgets are exact while the database answers in time. The machine of the tests may be slow.
    database_timeout_seconds: float = 30.0
    scripted: str = field(default_factory=lambda: f"s{secrets.token_hex(4)}")
    anthropic: str = field(default_factory=lambda: f"a{secrets.token_hex(4)}")
    environ: dict[str, str] = field(
        default_factory=lambda: {"KEY": CANARY, "OTHER_KEY": "sk-other-0000000000"}
    )

    def ref(self, model: str) -> str:
        """Return the full name of a scripted model."""
        return f"{self.scripted}/{model}"

    def config(self, **changes: Any) -> dict[str, Any]:
        """Return a configuration with the models `one` and `two` of an OpenAI-compatible provider,
        and `claude`. `blind` cannot see and has no tools.
        """
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

    async def router(
        self,
        config: dict[str, Any] | None = None,
        *,
        tenant: str = "",
        is_prepared: bool = True,
        metrics: Metrics = NO_METRICS,
        **settings: Any,
    ) -> Router:
        """Start a router with a prepared tenant. Its attempts are short and not repeated, unless the
        test changes that.
        """
        file = self.folder / f"{secrets.token_hex(4)}.json"
        file.write_text(json.dumps(config or self.config()))
        spans = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(spans))
        defaults = {
            "tries_before_failover": 1,
            "tries_at_last_candidate": 1,
            "database_timeout_seconds": self.database_timeout_seconds,
        }
        router_settings = ModelRouterSettings(
            database_url=self.dsn.app,
            config_file=file,
            jwks_file=self.keys / "jwks.json",
            **{**defaults, **settings},
        )
        verifier = TokenVerifier(JwksFile(self.keys / "jwks.json"))
        minter = TokenMinter("model-router", self.keys / "model-router.pem")
        process = Process(
            "model-router", router_settings, minter, verifier, provider.get_tracer("test"), metrics
        )
        server = await self.stack.enter_async_context(
            open_service(process, router_settings, environ=self.environ)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.stack.push_async_callback(server.stop, None)
        caller = Process("client", ProcessSettings(), None, None, provider.get_tracer("test"))
        peer = await self.stack.enter_async_context(open_peer(caller, "model-router", f"127.0.0.1:{port}"))
        # Channels of one process share connections. The port may have been another server's, which
        # is gone now.
        async with asyncio.timeout(60):
            await peer.channel.channel_ready()
        tenant = tenant or f"t-{secrets.token_hex(4)}"
        token = TokenMinter("client", self.keys / "client.pem").client_token(tenant, "tester", 600)
        target = f"127.0.0.1:{port}"
        router = Router(peer, ModelRouterServiceStub(peer.channel), token, spans, target, self.keys, tenant)
        if is_prepared:
            await router.send_policy(1)
            spans.clear()
        return router


@asynccontextmanager
async def open_world(dsn: ServiceDsn, keys: Path, folder: Path) -> AsyncIterator[World]:
    """Yield a migrated database and a provider. No router runs yet."""
    await asyncio.to_thread(migrate_once, dsn.owner, "model_router")
    async with open_loopback_provider() as provider, AsyncExitStack() as stack:
        yield World(provider, dsn, keys, folder, stack)


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


def tool_result(
    call_id: str, *content: str | message_pb2.ContentBlock, failed: bool = False
) -> message_pb2.Message:
    blocks = [text_block(block) if isinstance(block, str) else block for block in content]
    return message_pb2.Message(
        role=message_pb2.ROLE_TOOL_RESULT,
        tool_call_id=call_id,
        tool_name="read",
        content=blocks,
        is_error=failed,
    )


async def refusal_of(router: Router, method: str, request: Any, token: str = "") -> Reason:
    """Return the reason for which the call is refused."""
    with pytest.raises(MeshError) as refused:
        await router.call(method, request, token)
    return refused.value.reason
