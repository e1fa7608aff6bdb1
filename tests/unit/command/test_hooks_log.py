"""`hooks log` shows the newest calls, also behind pages without any."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.hook.v1 import delivery_pb2 as delivery_pb
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceServicer, add_HookServiceServicer_to_server
from spawnmesh_runtime.server import MeshServer

from tests.support.command.fake_mesh import (
    FakeMesh,
    FakeSessions,
    FakeTranscript,
    served,
    unset,
    write_mesh_file,
)
from tests.support.command.tenants import FakeTenants

__all__ = ["unset"]


@dataclass
class FakeDeliveryLog(HookServiceServicer):
    """Pages of these calls; records the requests."""

    pages: list[list[str]]
    requests: list[Any] = field(default_factory=list)

    async def ListDeliveries(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        number = int(request.page_token or 0)
        more = str(number + 1) if number + 1 < len(self.pages) else ""
        calls = [
            delivery_pb.Delivery(plugin=name, decision=delivery_pb.DELIVERY_DECISION_DENY)
            for name in self.pages[number]
        ]
        return pb.ListDeliveriesResponse(deliveries=calls, next_page_token=more)


@pytest.fixture
async def log() -> FakeDeliveryLog:
    return FakeDeliveryLog([[], ["first"], [], ["second", "third"], ["fourth"]])


@pytest.fixture
async def mesh(keys: Path, tmp_path: Path, log: FakeDeliveryLog) -> AsyncIterator[FakeMesh]:
    def add(server: MeshServer) -> None:
        add_HookServiceServicer_to_server(log, server)

    async with served("hook", keys, add) as target:
        targets = {"session": target, "hook": target}
        write_mesh_file(tmp_path, keys, targets)
        yield FakeMesh(tmp_path, FakeSessions(), FakeTenants(), FakeTranscript(), targets)


@pytest.mark.parametrize(
    ("limit", "expected", "page_count"),
    [(1, ["first"], 2), (2, ["first", "second"], 4), (50, ["first", "second", "third", "fourth"], 5)],
)
async def test_calls_behind_empty_pages_are_shown(
    mesh: FakeMesh, log: FakeDeliveryLog, limit: int, expected: list[str], page_count: int
) -> None:
    shown = await mesh.run("hooks", "log", "--decision", "deny", "--limit", str(limit), "--json")
    assert [one["plugin"] for one in json.loads(shown.stdout)["deliveries"]] == expected
    assert [one.page_token for one in log.requests] == ["", *map(str, range(1, page_count))]
    assert {one.decision for one in log.requests} == {delivery_pb.DELIVERY_DECISION_DENY}
