"""The trial session of `spawnmesh doctor --deep`."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_rpc
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import (
    ModelRouterServiceServicer,
    add_ModelRouterServiceServicer_to_server,
)
from spawnmesh.model_router.v1.routing_pb2 import ProviderHealth
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_rpc
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.command.fake_mesh import (
    SESSION_ID,
    FakeMesh,
    FakeSessions,
    FakeTranscript,
    add_sessions,
    served,
    session_in,
    unset,
    write_mesh_file,
)
from tests.support.command.tenants import FakeTenants

__all__ = ["unset"]


@dataclass
class FakeRouter(ModelRouterServiceServicer):
    providers: list[ProviderHealth] = field(
        default_factory=lambda: [
            ProviderHealth(provider="one", credential_count=1, readable_credential_count=1)
        ]
    )

    async def ListProviderHealth(self, request: Any, context: Any) -> Any:
        return router_rpc.ListProviderHealthResponse(providers=self.providers)


@dataclass
class StubbornSessions(FakeSessions):
    delete_refusal: MeshError | None = None

    async def DeleteSession(self, request: Any, context: Any) -> Any:
        if self.delete_refusal is not None:
            raise self.delete_refusal
        return await super().DeleteSession(request, context)


@dataclass
class Clinic(FakeMesh):
    """A session service and a model router."""

    sessions: StubbornSessions
    router: FakeRouter

    async def finding(self) -> dict[str, Any]:
        result = await self.run("doctor", "--deep", "--json")
        return {one["name"]: one for one in json.loads(result.stdout)["findings"]}["run"]

    @property
    def requests(self) -> list[str]:
        return [type(request).__name__ for request in self.sessions.requests]


@pytest.fixture
async def clinic(keys: Path, tmp_path: Path) -> AsyncIterator[Clinic]:
    sessions, tenants, router = StubbornSessions(), FakeTenants(), FakeRouter()
    async with AsyncExitStack() as stack:
        targets = {
            "session": await stack.enter_async_context(
                served("session", keys, add_sessions(sessions, tenants))
            ),
            "model-router": await stack.enter_async_context(
                served(
                    "model-router",
                    keys,
                    lambda server: add_ModelRouterServiceServicer_to_server(router, server),
                )
            ),
        }
        write_mesh_file(tmp_path, keys, targets)
        yield Clinic(tmp_path, sessions, tenants, FakeTranscript(), targets, router)


async def test_a_session_is_run_and_deleted(clinic: Clinic) -> None:
    found = await clinic.finding()

    assert (found["ok"], found["detail"].startswith("a runner took a session and ended it in ")) == (
        True,
        True,
    )
    assert clinic.requests == ["SpawnSessionRequest", "WaitSessionRequest", "DeleteSessionRequest"]
    assert clinic.sessions.requests[0].run_timeout.seconds == 45
    assert clinic.sessions.requests[-1] == session_rpc.DeleteSessionRequest(session_id=SESSION_ID)


@pytest.mark.parametrize(
    ("outcome", "said", "advice"),
    [
        (
            session_in(session_pb2.RUN_STATE_QUEUED),
            "no runner took a session in ",
            "see that runners are there",
        ),
        (
            session_in(session_pb2.RUN_STATE_RUNNING, attempt_count=3),
            "and 3 tries",
            "see the log of the runner",
        ),
        (
            session_in(
                session_pb2.RUN_STATE_FAILED, error_reason=reason_pb2.REASON_MODEL_REFUSED, error_message="no"
            ),
            "ended as failed: MODEL_REFUSED: no",
            "runners work",
        ),
        (
            session_in(session_pb2.RUN_STATE_TIMED_OUT),
            "no runner took a session in ",
            "see that runners are there",
        ),
        (session_in(session_pb2.RUN_STATE_QUEUED, attempt_count=1), "and 1 try", "see the log of the runner"),
        (
            session_in(session_pb2.RUN_STATE_TIMED_OUT, attempt_count=1),
            "ended as timed_out: no reason is given",
            "runners work",
        ),
        (
            session_pb2.Session(
                state=session_pb2.SESSION_STATE_SPAWN_FAILED, failure_reason=reason_pb2.REASON_SPAWN_REFUSED
            ),
            "was not made ready: SPAWN_REFUSED",
            "session and its worker",
        ),
    ],
)
async def test_a_failed_session_is_reported_with_advice_and_deleted(
    clinic: Clinic, outcome: Any, said: str, advice: str
) -> None:
    clinic.sessions.outcome = outcome

    found = await clinic.finding()

    assert (found["ok"], said in found["detail"], advice in found["advice"]) == (False, True, True), found
    assert clinic.requests[-1] == "DeleteSessionRequest"


async def test_a_refused_spawn_is_reported(clinic: Clinic) -> None:
    clinic.sessions.refusal = MeshError(Reason.RUN_QUEUE_FULL, "too many runs wait")

    found = await clinic.finding()

    assert (found["ok"], "too many runs wait" in found["detail"]) == (False, True)
    assert "DeleteSessionRequest" not in clinic.requests


async def test_without_a_model_nothing_is_spawned(clinic: Clinic) -> None:
    for providers in ([], [ProviderHealth(provider="one", credential_count=1)]):
        clinic.router.providers = providers
        found = await clinic.finding()
        assert (found["ok"], found["detail"]) == (None, "not tried: no model is known to be there")
    assert clinic.requests == []


async def test_a_session_that_cannot_be_deleted_is_named(clinic: Clinic) -> None:
    clinic.sessions.delete_refusal = MeshError(Reason.CONFLICT, "not now")

    found = await clinic.finding()

    assert (found["ok"], found["advice"]) == (False, f"spawnmesh delete {SESSION_ID}")
