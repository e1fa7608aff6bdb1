"""The classification of one request is bounded, so that it does not delay other requests."""

import json
import time

import pytest
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb

from tests.support.model_router.fixtures import World

FIELDS = ("message", "detail", "msg", "error_description", "raw")


def bodies_in(text: int) -> str:
    """Return as many JSON bodies as the classifier reads in one text, each with different escaped
    texts.
    """
    bodies = [{field: f"\u00e9{text:02d}{body:02d}{field[0]}" for field in FIELDS} for body in range(58)]
    return json.dumps({"a": bodies}, separators=(",", ":"))


@pytest.mark.parametrize(
    "said", [bodies_in, lambda number: f"{number} key " + "quota " * 1360], ids=["bodies", "prose"]
)
async def test_ClassifyError__a_request_of_many_texts_holds_nobody_up(world: World, said: object) -> None:
    router = await world.router()
    assert callable(said)
    texts = [said(number) for number in range(51)]
    request = pb.ClassifyErrorRequest(message=texts[0], details=texts[1:26], causes=texts[26:])
    begin = time.process_time()  # The router's too, and without what else the machine does.
    answer = await router.call("ClassifyError", request)
    assert time.process_time() - begin < 0.5
    assert answer.reason != generation_pb2.FAILOVER_REASON_UNSPECIFIED
