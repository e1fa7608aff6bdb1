"""ExplainRoute says what Generate does with the images of a request."""

import pytest
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb

from tests.support.model_router.fixtures import World, image_block, user
from tests.support.model_router.provider import BROKEN

LOOK = user("look", image_block())


def shown(candidate: generation_pb2.CandidateVerdict) -> tuple[str, str, str]:
    """Return (model without provider, verdict, images)."""
    verdict = generation_pb2.Verdict.Name(candidate.verdict).removeprefix("VERDICT_")
    images = generation_pb2.ImageOutcome.Name(candidate.images).removeprefix("IMAGE_OUTCOME_")
    return candidate.model.partition("/")[2], verdict, images


@pytest.mark.parametrize(
    ("policy", "outcomes"),
    [
        (
            "REFUSE",
            [("blind", "INCAPABLE", "REFUSED"), ("two", "NOT_NEEDED", "UNSPECIFIED"), ("claude", "NOT_NEEDED", "UNSPECIFIED")],
        ),
        (
            "ROUTE_AROUND",
            [("blind", "INCAPABLE", "ROUTED_AROUND"), ("two", "READY", "SENT"), ("claude", "READY", "WITHHELD")],
        ),
        ("STRIP", [("blind", "READY", "STRIPPED"), ("two", "READY", "SENT"), ("claude", "READY", "WITHHELD")]),
    ],
)  # fmt: skip
async def test_ExplainRoute__agrees_with_Generate_about_images(
    world: World, policy: str, outcomes: list[tuple[str, str, str]]
) -> None:
    router = await world.router(world.config(blind_model_policy=policy))
    for model in ("blind", "two", "claude"):
        world.provider.on(model, BROKEN)
    chain = pb.Fallbacks(models=[world.ref("two"), f"{world.anthropic}/claude"])
    request = pb.GenerateRequest(model=world.ref("blind"), fallbacks=chain, messages=[LOOK])
    explained = await router.call("ExplainRoute", pb.ExplainRouteRequest(request=request))
    assert [shown(candidate) for candidate in explained.candidates] == outcomes

    answered = await router.generate(world.ref("blind"), fallbacks=chain, messages=[LOOK])
    called = [event.attempt_started for event in answered.events if event.HasField("attempt_started")]
    expected = [(model, images) for model, verdict, images in outcomes if verdict == "READY"]
    assert [
        (
            one.model.partition("/")[2],
            generation_pb2.ImageOutcome.Name(one.images).removeprefix("IMAGE_OUTCOME_"),
        )
        for one in called
    ] == expected
    facts = answered.refused.facts
    kinds = {"READY": "FAILED"}
    assert [str(facts[f"candidate_{number}"]).split()[1] for number in (1, 2, 3)] == [
        kinds.get(verdict, verdict) for _, verdict, _ in outcomes
    ]
