"""An error that no rule matches sends the call to the next candidate, and puts none in cooldown."""

import json

import pytest
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import TRANSIENT_FACT
from spawnmesh_core.reasons import Reason

from tests.support.model_router.cooldowns import list_cooldowns
from tests.support.model_router.fixtures import World
from tests.support.model_router.provider import Answering, chat, chunk, error, raw_sse, sse

ODD = {"error": {"message": "The flux capacitor is misaligned", "type": "odd", "code": "E77"}}
FULL = {"error": {"message": "No space left on device", "type": "odd"}}
STATUSES = (405, 409, 418, 423, 424, 425, 451)


def in_stream(body: dict[str, object]) -> Answering:
    return raw_sse(f"data: {json.dumps(chunk({'role': 'assistant'}))}\n\ndata: {json.dumps(body)}\n\n")


@pytest.mark.parametrize(
    "answering",
    [
        *(error(status, ODD) for status in STATUSES),
        error(409, ""),
        error(200, ODD),
        in_stream(ODD),
        in_stream(FULL),
    ],
    ids=[*map(str, STATUSES), "no-body", "200", "stream", "disk-of-the-provider"],
)
async def test_Generate__an_unknown_error_asks_the_next_candidate(world: World, answering: Answering) -> None:
    world.provider.on("one", answering)
    world.provider.on("two", sse(*chat("from two")))
    router = await world.router()
    answered = await router.generate(world.ref("one"), world.ref("two"))
    assert answered.verdicts == [("one", "FAILED", "UNCLASSIFIED"), ("two", "ANSWERED", "UNSPECIFIED")]
    assert await list_cooldowns(router) == []


async def test_Generate__a_chain_of_unknown_errors_is_not_transient(world: World) -> None:
    world.provider.on("one", error(418, ODD))
    router = await world.router(tries_at_last_candidate=2)
    refused = (await router.generate(world.ref("one"))).refused
    assert refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert refused.facts[TRANSIENT_FACT] == "false"
    assert refused.facts["candidate_1"] == f"{world.ref('one')} FAILED UNCLASSIFIED"
    assert world.provider.asked("one") == 1


async def test_ClassifyError__an_unknown_error_stops_no_chain(world: World) -> None:
    router = await world.router()
    request = pb.ClassifyErrorRequest(http_status=418, message=json.dumps(ODD))
    judged = await router.call("ClassifyError", request)
    assert judged.reason == generation_pb2.FAILOVER_REASON_UNCLASSIFIED
    assert (judged.is_transient, judged.stops_chain) == (False, False)
