"""A tenant that stops after side effects gets answers only from the provider of the turn."""

from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.reasons import Reason

from tests.support.model_router.fixtures import (
    Router,
    World,
    assistant,
    call_block,
    image_block,
    user,
)
from tests.support.model_router.provider import BROKEN, anthropic_answer, chat, named_sse, sse

PAID: dict[str, Any] = {
    "tools": [generation_pb2.ToolDeclaration(name="pay")],
    "partial_execution": generation_pb2.PartialExecution(tool_names=["pay"]),
}


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("one", BROKEN)
    world.provider.on("two", sse(*chat("two")))
    world.provider.on("claude", named_sse(*anthropic_answer()))
    return world


@pytest.fixture
async def router(world: World) -> Router:
    router = await world.router()
    await router.prepare(1, stop_after_side_effects=True)
    return router


def said_by(model: str) -> list[message_pb2.Message]:
    """Return a turn that the model has begun."""
    answer = assistant(call_block("c1", "pay", '{"type":"toolCall","id":"c1","name":"pay","arguments":{}}'))
    answer.model = model
    return [user("pay"), answer]


async def test_Generate__who_rests_is_not_passed_over_either(world: World, router: Router) -> None:
    for _ in range(2):
        answered = await router.generate(world.ref("one"), f"{world.anthropic}/claude", **PAID)
        assert answered.refused.reason is Reason.ALL_CANDIDATES_FAILED
        assert str(answered.refused.facts["candidate_2"]).endswith("NOT_NEEDED")
    explained = await router.explain(world.ref("one"), f"{world.anthropic}/claude", world.ref("two"), **PAID)
    assert explained == [("one", "COOLING"), ("claude", "NOT_NEEDED"), ("two", "READY")]


@pytest.mark.parametrize(
    ("spoke", "answers"),
    [
        ("{anthropic}/claude", "I read it."),
        ("{scripted}/gone", "two"),
        ("nobody/model", "two"),
        ("", "two"),
    ],
)
async def test_Generate__the_turn_goes_on_at_the_provider_of_its_newest_answer(
    world: World, router: Router, spoke: str, answers: str
) -> None:
    messages = said_by(spoke.format(anthropic=world.anthropic, scripted=world.scripted))
    chain = (world.ref("one"), f"{world.anthropic}/claude", world.ref("two"))
    assert (await router.generate(*chain, messages=messages, **PAID)).text == answers
    assert world.provider.asked("one") == (1 if answers == "two" else 0)


async def test_Generate__an_explicit_choice_is_no_crossing(world: World, router: Router) -> None:
    asked = {"strict": True, "messages": said_by(world.ref("two")), **PAID}
    assert (await router.generate(f"{world.anthropic}/claude", **asked)).text == "I read it."


@pytest.mark.parametrize("place", [0, 20])
async def test_Generate__what_was_done_counts_in_whatever_place_it_was_done(
    world: World, router: Router, place: int
) -> None:
    reads = [f"read_{number}" for number in range(30)]
    names = [*reads[:place], "pay", *reads[place:]]
    tools = [generation_pb2.ToolDeclaration(name=name, is_idempotent=name != "pay") for name in names]
    answered = await router.generate(
        world.ref("one"),
        f"{world.anthropic}/claude",
        world.ref("two"),
        tools=tools,
        partial_execution=generation_pb2.PartialExecution(tool_names=names),
    )
    assert answered.text == "two"
    [body] = [body for body in world.provider.bodies if body["model"] == "two"]
    told = str(body["messages"][0]["content"])
    assert "unknown: pay." in told
    assert "read_18" in told
    assert "read_19" not in told
    assert "and 11 more." in told


async def test_PlanRetry__tools_that_are_not_idempotent_come_first(router: Router) -> None:
    reads = [f"read_{number}" for number in range(20)]
    partial = generation_pb2.PartialExecution(tool_names=[*reads, "pay"])
    request = pb.PlanRetryRequest(is_retry=True, partial_executions=[partial], idempotent_tool_names=reads)
    planned: pb.PlanRetryResponse = await router.call("PlanRetry", request)
    assert list(planned.partial_execution.tool_names) == [*reads[:19], "pay"]
    assert "unknown: pay." in planned.notice


async def test_ExplainRoute__treats_images_as_Generate_does(world: World) -> None:
    router = await world.router()
    earlier = generation_pb2.EarlierAttempt(
        model=world.ref("two"), reason=generation_pb2.FAILOVER_REASON_FORMAT
    )
    request = pb.GenerateRequest(
        model=world.ref("two"),
        strict=True,
        messages=[user("look", image_block())],
        earlier_attempts=[earlier],
    )
    told = await router.call("ExplainRoute", pb.ExplainRouteRequest(request=request))
    assert told.candidates[0].images == generation_pb2.IMAGE_OUTCOME_WITHHELD
    answered = await router.generate(
        world.ref("two"), strict=True, messages=[user("look", image_block())], earlier_attempts=[earlier]
    )
    assert answered.completion.verdicts[0].images == generation_pb2.IMAGE_OUTCOME_WITHHELD
