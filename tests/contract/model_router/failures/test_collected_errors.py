"""Errors of real providers, collected from public issues, have their reason."""

import json
from pathlib import Path
from typing import Any

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb

from tests.support.model_router.fixtures import World

FILE = Path(__file__).parents[3] / "unit" / "model_router" / "cases" / "collected_wordings.json"
CASES: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))


async def test_ClassifyError__judges_what_providers_really_say(world: World) -> None:
    router = await world.router()
    wrong = []
    for case in CASES:
        given = dict(case["given"])
        request = pb.ClassifyErrorRequest(http_status=given.pop("status", 0), **given)
        judged = await router.call("ClassifyError", request)
        reason = generation_pb2.FailoverReason.Name(judged.reason).removeprefix("FAILOVER_REASON_")
        if reason != case["expect"]["reason"]:
            wrong.append((case["source"], given["message"], reason, case["expect"]["reason"]))
    assert wrong == []
