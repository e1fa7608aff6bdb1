"""A tenant without settings that floods any RPC is refused, and another tenant is not."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.call_limits import SHARED_CALL_LIMITS
from spawnmesh_runtime.call_limits import DefaultCallLimits
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of
from spawnmesh_runtime.rpc_class import RpcClass

from tests.support.security.attacked import Attacked, open_attacked
from tests.support.security.raw_calls import METHODS, bearer, path_of, refused, token_of

BURST = 3
CALLS = 60
"""So many calls would take a minute at the limit."""
LIMITS = {one.lower(): {"calls_per_second": 1, "burst_seconds": BURST} for one in RpcClass}
FLOODED = {name: method for name, method in METHODS.items() if CallerKind.CLIENT in policy_of(method).callers}


@pytest.fixture
async def attacked(keys: Path) -> AsyncIterator[Attacked]:
    """Serve every RPC with limits that an operator gave to every tenant."""
    async with open_attacked(keys, call_limits=LIMITS) as opened:
        yield opened


async def answers(channel: grpc.aio.Channel, method: MethodDescriptor, token: str, count: int) -> list[str]:
    """Make calls with garbage, one after the other; return their reasons."""
    calls = [
        await refused(
            channel, method, *([] if method.client_streaming else [b"\xff"]), headers=(bearer(token),)
        )
        for _ in range(count)
    ]
    return [one.reason.value if one.reason else one.code for one in calls]


async def test_flood_of_any_rpc_is_refused_and_another_tenant_is_not(
    attacked: Attacked, channel: grpc.aio.Channel
) -> None:
    unlimited = []
    for number, (name, method) in enumerate(FLOODED.items()):
        flooder, victim = (
            token_of(attacked.keys, CallerKind.CLIENT, tenant=f"{one}-{number}")
            for one in ("flooder", "victim")
        )
        given: list[str] = []
        while Reason.RATE_LIMITED.value not in given and len(given) < CALLS:
            given += await answers(channel, method, flooder, BURST + 1)
        if Reason.RATE_LIMITED.value not in given:
            unlimited.append(name)
        assert given[:BURST].count(Reason.RATE_LIMITED.value) == 0, name
        assert Reason.RATE_LIMITED.value not in await answers(channel, method, victim, BURST), name
    assert unlimited == []


async def test_refusal_has_the_class_the_limit_and_a_time(
    attacked: Attacked, channel: grpc.aio.Channel
) -> None:
    method = METHODS["spawnmesh.session.v1.SessionService.SpawnSession"]
    token = token_of(attacked.keys, CallerKind.CLIENT)

    async def error() -> MeshError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(path_of(method))(b"\xff", metadata=(bearer(token),), timeout=60)
        assert isinstance(caught.value, grpc.aio.AioRpcError)
        return error_from("attacked", caught.value)

    errors = [await error() for _ in range(CALLS)]
    limited = next(one for one in errors if one.reason is Reason.RATE_LIMITED)
    assert limited.facts == {"rpc_class": "SPAWN", "limit": "calls_per_second", "max_per_second": "1"}
    assert limited.retry_after_seconds is not None
    assert 0 < limited.retry_after_seconds <= 1


def test_mesh_on_one_machine_limits_every_class() -> None:
    given, without = DefaultCallLimits.model_validate(SHARED_CALL_LIMITS), DefaultCallLimits()
    for one in RpcClass:
        shared, alone = getattr(given, one.lower()), getattr(without, one.lower())
        assert shared.calls_per_second < alone.calls_per_second, one
        assert shared.concurrent_call_count <= alone.concurrent_call_count, one
