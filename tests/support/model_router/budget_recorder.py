"""The budgets of the session service over real gRPC: it notes the calls, and answers as the
test says.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spawnmesh.session.v1 import budget_service_pb2 as service_pb
from spawnmesh.session.v1 import token_service_pb2 as token_pb
from spawnmesh.session.v1.budget_service_pb2_grpc import (
    BudgetServiceServicer,
    add_BudgetServiceServicer_to_server,
)
from spawnmesh.session.v1.token_service_pb2_grpc import (
    TokenServiceServicer,
    add_TokenServiceServicer_to_server,
)
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import current_caller
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.fixtures import Router, World
from tests.support.serving import served, shared_settings

Step = Callable[[], Awaitable[Any]]


@dataclass
class BudgetRecorder:
    """The requests that arrived, in order, and the steps before their answers.

    A request is noted before its step, as the session service commits before it answers.
    """

    keys: Path
    stack: AsyncExitStack
    target: str = ""
    requests: list[service_pb.AdmitModelCallRequest | service_pb.RecordModelCallRequest] = field(
        default_factory=list
    )
    tenants: set[str] = field(default_factory=set)
    on_admit: Step | None = None
    on_record: Step | None = None
    session_id: str = field(default_factory=lambda: new_id(IdKind.SESSION))
    run_id: str = field(default_factory=lambda: new_id(IdKind.RUN))

    @property
    def admitted(self) -> list[service_pb.AdmitModelCallRequest]:
        return [one for one in self.requests if isinstance(one, service_pb.AdmitModelCallRequest)]

    @property
    def recorded(self) -> list[service_pb.RecordModelCallRequest]:
        return [one for one in self.requests if isinstance(one, service_pb.RecordModelCallRequest)]

    @property
    def only(self) -> tuple[int, int]:
        """Return the tokens and the cost of the only call, which was admitted and recorded once."""
        (admitted,), (recorded,) = self.admitted, self.recorded
        assert recorded.call_id == admitted.call_id
        return recorded.token_count, recorded.cost_micros

    async def start(self) -> None:
        """Serve at the same address as before, if there was one."""
        port = int(self.target.rpartition(":")[2] or 0)
        settings = ProcessSettings(**shared_settings("session", self.keys))
        self.target = await self.stack.enter_async_context(served("session", settings, self._open, port=port))

    async def stop(self) -> None:
        await self.stack.aclose()

    async def router(self, world: World, config: dict[str, Any] | None = None, **settings: Any) -> Router:
        """Return a router of these budgets, as the run calls it."""
        opened = await world.router(config, session_target=self.target, **settings)
        return replace(opened, token=self.run_token(opened.tenant))

    def run_token(self, tenant_id: str, *, has_budget: bool = True) -> str:
        minter = TokenMinter("session", self.keys / "session.pem")
        return minter.run_token(tenant_id, self.session_id, self.run_id, 1, 600, has_budget=has_budget)

    @asynccontextmanager
    async def _open(self, process: Process, settings: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        budgets: Any = (
            # The type checker regards a servicer without all RPCs as abstract. No test calls the
            # others.
            _Budgets
        )
        tokens: Any = _Tokens
        add_BudgetServiceServicer_to_server(budgets(self), server)
        add_TokenServiceServicer_to_server(tokens(), server)
        yield server


class _Budgets(BudgetServiceServicer):
    def __init__(self, recorder: BudgetRecorder) -> None:
        self.recorder = recorder

    async def AdmitModelCall(
        self, request: service_pb.AdmitModelCallRequest, context: Any
    ) -> service_pb.AdmitModelCallResponse:
        await self._note(request, self.recorder.on_admit)
        return service_pb.AdmitModelCallResponse()

    async def RecordModelCall(
        self, request: service_pb.RecordModelCallRequest, context: Any
    ) -> service_pb.RecordModelCallResponse:
        await self._note(request, self.recorder.on_record)
        return service_pb.RecordModelCallResponse()

    async def _note(
        self, request: service_pb.AdmitModelCallRequest | service_pb.RecordModelCallRequest, step: Step | None
    ) -> None:
        self.recorder.tenants.add(current_caller().tenant_id)
        self.recorder.requests.append(request)
        if step is not None:
            await step()


class _Tokens(TokenServiceServicer):
    async def WatchRevokedTokens(
        self, request: token_pb.WatchRevokedTokensRequest, context: Any
    ) -> AsyncIterator[token_pb.WatchRevokedTokensResponse]:
        yield token_pb.WatchRevokedTokensResponse(change=1)
        await asyncio.Event().wait()


@asynccontextmanager
async def open_budget_recorder(keys: Path) -> AsyncIterator[BudgetRecorder]:
    """Serve for the block."""
    async with AsyncExitStack() as stack:
        recorder = BudgetRecorder(keys, stack)
        await recorder.start()
        yield recorder


def refusing(error: MeshError, *, times: int | None = None) -> Step:
    """Return a step that raises the error, each time or so many times."""
    left = [times]

    async def refuse() -> None:
        if left[0] is not None:
            if left[0] == 0:
                return
            left[0] -= 1
        raise error

    return refuse


def away() -> MeshError:
    """Return the error of a service that lost its database."""
    return MeshError(Reason.DEPENDENCY_UNAVAILABLE, "the database does not answer")


def priced(world: World, **settings: Any) -> dict[str, Any]:
    """Return a configuration whose model `one` costs a millionth for each token that it reads and
    two for each that it writes, and `two` ten times as much. Both are small.
    """
    config = world.config(**settings)
    for model, factor in {"one": 1, "two": 10}.items():
        config["models"][world.ref(model)] |= {
            "context_window": 1000,
            "max_output": 100,
            "input_micros_per_million_tokens": factor * 10**6,
            "output_micros_per_million_tokens": factor * 2 * 10**6,
        }
    return config
