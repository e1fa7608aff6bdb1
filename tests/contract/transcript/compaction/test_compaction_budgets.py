"""Compactions count in the budgets of the run that starts them, with all that they use."""

import pytest
from spawnmesh.content.v1.message_pb2 import TokenUsage
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.transcript.compaction import USAGE, Compacting

FACTS = {"session_id": "ses_1", "run_id": "run_1", "limits": "COST"}


async def test_CompactAsWriter__calls_for_a_run_with_a_budget_name_it(compacting: Compacting) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    token = compacting.session.run_token(claim, has_budget=True)
    assert (await compacting.compact(claim, token=token)).HasField("summary")
    (asked,) = compacting.peers.prompts
    assert (asked.session_id, asked.run_id) == (compacting.session.session_id, claim.run_id)


async def test_CompactTranscript__calls_are_the_spending_of_the_agent_of_the_run(
    compacting: Compacting,
) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    token = compacting.session.run_token(claim, agent_id="ann")
    assert (await compacting.compact(claim, token=token)).HasField("summary")
    (asked,) = compacting.peers.prompts
    assert (asked.agent_id, asked.run_id) == ("ann", "")


@pytest.mark.parametrize("caller", ["run", "client"])
async def test_a_compaction_for_others_names_no_run(compacting: Compacting, caller: str) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    if caller == "client":
        await compacting.session.release(claim)
        assert (await compacting.compact_all()).summary_entry_id
    else:
        assert (await compacting.compact(claim)).HasField("summary")
    (asked,) = compacting.peers.prompts
    assert (asked.session_id, asked.run_id) == (compacting.session.session_id, "")
    assert asked.agent_id == ""


async def test_CompactAsWriter__used_up_budget_is_refused_as_the_router_says(
    compacting: Compacting,
) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    refusal = MeshError(Reason.SESSION_BUDGET_EXCEEDED, "it is used up", facts=FACTS)
    compacting.peers.answers.append(refusal)
    with pytest.raises(MeshError) as refused:
        await compacting.compact(claim, token=compacting.session.run_token(claim, has_budget=True))
    assert refused.value.reason is Reason.SESSION_BUDGET_EXCEEDED
    assert {name: refused.value.facts[name] for name in FACTS} == FACTS


async def test_CompactAsWriter__attempts_that_failed_are_part_of_the_usage(compacting: Compacting) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    compacting.peers.failed_usage = TokenUsage(
        input_token_count=7,
        output_token_count=3,
        cache_read_token_count=2,
        cache_write_token_count=1,
        cost_micros=90,
        price_version="v1",
    )
    told = (await compacting.compact(claim)).summary.body.compaction
    assert told.sources.usage == TokenUsage(
        input_token_count=107,
        output_token_count=23,
        cache_read_token_count=32,
        cache_write_token_count=5,
        cost_micros=590,
        price_version=USAGE.price_version,
    )


async def test_CompactAsWriter__answers_of_nothing_are_part_of_the_usage(compacting: Compacting) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    facts = {
        "candidate_1": "scripted/one TRIED EMPTY_RESPONSE",
        "used_input_token_count": "20",
        "used_output_token_count": "5",
        "used_cost_micros": "30",
    }
    empty = MeshError(Reason.ALL_CANDIDATES_FAILED, "none answered", facts=facts)
    compacting.peers.answers.append(empty)
    told = (await compacting.compact(claim)).summary.body.compaction
    assert told.sources.method == entry_pb.SUMMARY_METHOD_EXCERPT
    assert told.sources.usage == TokenUsage(input_token_count=20, output_token_count=5, cost_micros=30)
