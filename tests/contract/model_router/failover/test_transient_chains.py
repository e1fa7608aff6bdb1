"""A chain that may answer later says so, and when: a run waits for it."""

import pytest
from spawnmesh_core.errors import MeshError, is_transient
from spawnmesh_core.reasons import Reason

from tests.support.model_router.fixtures import World
from tests.support.model_router.provider import Answering, chat, openai_error, raw_sse, sse

BAD_KEY = openai_error(401, "Incorrect API key provided", "invalid_request_error", "invalid_api_key")
NO_MODEL = openai_error(404, "The model `one` does not exist", "invalid_request_error", "model_not_found")
FORBIDDEN_PARAMETER = openai_error(
    400, "Unknown parameter: 'top_q'.", "invalid_request_error", "unknown_parameter"
)
NO_DETAILS = raw_sse('data: {"error": {"message": "no error details"}}\n\n')


def failed(error: MeshError) -> MeshError:
    assert error.reason is Reason.ALL_CANDIDATES_FAILED
    return error


@pytest.mark.parametrize(("answering", "reason"), [(BAD_KEY, "AUTH"), (NO_MODEL, "MODEL_NOT_FOUND")])
async def test_Generate__the_request_that_finds_a_cooldown_may_be_answered_when_it_ends(
    world: World, answering: Answering, reason: str
) -> None:
    world.provider.on("one", answering)
    router = await world.router()
    first = failed((await router.generate(world.ref("one"))).refused)
    assert first.facts["candidate_1"] == f"{world.ref('one')} FAILED {reason}"
    assert not is_transient(first)
    second = failed((await router.generate(world.ref("one"))).refused)
    assert f" COOLING {reason} until " in second.facts["candidate_1"]
    assert is_transient(second)
    assert (second.retry_after_seconds or 0) > 20
    assert world.provider.asked("one") == 1


async def test_Generate__a_candidate_in_cooldown_may_answer_what_another_one_refuses(world: World) -> None:
    world.provider.on("one", BAD_KEY)
    world.provider.on("claude", FORBIDDEN_PARAMETER)
    router = await world.router()
    await router.generate(world.ref("one"))
    refused = failed((await router.generate(world.ref("one"), f"{world.anthropic}/claude")).refused)
    assert refused.facts["candidate_2"] == f"{world.anthropic}/claude FAILED FORMAT"
    assert is_transient(refused)
    assert (refused.retry_after_seconds or 0) > 20


@pytest.mark.parametrize(
    ("answering", "reason"), [(sse(*chat()), "EMPTY_RESPONSE"), (NO_DETAILS, "NO_ERROR_DETAILS")]
)
async def test_Generate__a_failure_that_is_tried_again_in_the_call_is_worth_a_later_call(
    world: World, answering: Answering, reason: str
) -> None:
    world.provider.on("one", answering)
    router = await world.router(tries_at_last_candidate=2)
    refused = failed((await router.generate(world.ref("one"))).refused)
    assert refused.facts["candidate_1"] == f"{world.ref('one')} FAILED {reason}"
    assert is_transient(refused)
    assert world.provider.asked("one") == 2
