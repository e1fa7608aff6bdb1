"""Budgets: usage counts over all replicas, and a refusal says when to call again."""

import asyncio
import json
from typing import Any

import grpc
import pytest
from aiohttp import web
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.trace import SpanKind
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import open_database

from tests.support.model_router.fixtures import Answered, Router, World, user
from tests.support.model_router.provider import (
    BROKEN,
    Answering,
    Stall,
    anthropic_answer,
    chat,
    chunk,
    named_sse,
    openai_error,
    slowly,
    sse,
)
from tests.support.waiting import MINUTE, eventually, time_left_in

HELLO = [user("hello, " * 40)]  # 280 bytes: 70 tokens by the estimate.


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("one", sse(*chat("one")))
    world.provider.on("claude", named_sse(*anthropic_answer()))
    return world


def priced(world: World, model: str, **prices: int) -> dict[str, Any]:
    """Return a price table of one line. Prices are for a token, in millionths."""
    config = world.config()
    config["models"][model] |= {
        f"{sort}_micros_per_million_tokens": price * 10**6 for sort, price in prices.items()
    }
    return config


async def is_spent(router: Router, model: str) -> str:
    """Return the exhausted budget; empty if there is none."""
    answered = await router.generate(model, strict=True)
    if answered.refusal is None:
        return ""
    assert answered.refusal.reason is Reason.BUDGET_EXCEEDED
    return str(answered.refusal.facts["budget"])


async def test_Generate__spending_at_one_replica_is_spent_at_the_other(world: World) -> None:
    config = priced(world, world.ref("one"), input=1, output=2)
    first = await world.router(config)
    second = await world.router(config, tenant=first.tenant)
    await first.prepare(1, max_spend_micros_per_day=30)
    await second.prepare(1, max_spend_micros_per_day=30)
    assert (await first.generate(world.ref("one"))).text == "one"  # 20 tokens read and 5 written.
    refused = (await second.generate(world.ref("one"))).refused
    assert (refused.reason, refused.facts["budget"]) == (Reason.BUDGET_EXCEEDED, "spend_per_day")
    assert 0 < (refused.retry_after_seconds or 0) <= 86_400
    assert world.provider.asked("one") == 1


async def test_Generate__what_the_cache_gave_costs_what_the_table_says(world: World) -> None:
    claude = f"{world.anthropic}/claude"
    # 10 tokens read, 100 from the cache, 3 into it, 42 written: 10 * 10 + 100 * 1 + 3 * 12 + 42 *
    # 50 = 2336.
    router = await world.router(priced(world, claude, input=10, output=50, cache_read=1, cache_write=12))
    await router.prepare(1, max_spend_micros_per_day=2337)
    assert await is_spent(router, claude) == ""
    assert await is_spent(router, claude) == ""
    other = await world.router(priced(world, claude, input=10, output=50, cache_read=1, cache_write=12))
    await other.prepare(1, max_spend_micros_per_day=2336)
    assert await is_spent(other, claude) == ""
    assert await is_spent(other, claude) == "spend_per_day"


async def test_Generate__a_caller_who_leaves_pays_for_what_was_read_and_said(world: World) -> None:
    said = "word " * 40  # 200 bytes: 50 tokens.
    stall = Stall((chunk({"role": "assistant", "content": said}),))
    world.provider.on("one", stall, sse(*chat("one")))
    router = await world.router()
    await time_left_in(MINUTE)
    await router.prepare(1, max_tokens_per_minute=50)
    await router.hang_up_after(2, world.ref("one"), stall.reached.wait)

    async def is_counted() -> bool:
        return await is_spent(router, world.ref("one")) == "tokens_per_minute"

    await eventually(is_counted)
    assert world.provider.asked("one") <= 2


async def test_Generate__a_caller_who_leaves_while_it_is_counted_pays_for_all(world: World) -> None:
    last, said = asyncio.Event(), chat("one")

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write("".join(f"data: {json.dumps(event)}\n\n" for event in said[:2]).encode())
        await last.wait()
        await response.write("".join(f"data: {json.dumps(event)}\n\n" for event in said[2:]).encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    world.provider.on("one", answer)
    router = await world.router()
    await router.prepare(1, max_tokens_per_minute=25)
    async with (
        open_database(world.dsn.app, name="test", max_connections=2) as database,
        database.transaction(router.tenant) as connection,
    ):

        async def count_in_vain() -> None:
            await connection.execute("select from budget_periods for update")
            last.set()
            waits = """select from pg_stat_activity
                       where wait_event_type = 'Lock' and query like '%%insert into budget_periods%%'"""

            async def is_waiting() -> bool:
                # Each look needs a transaction of its own: within one, the view does not change.
                async with database.transaction(router.tenant) as other:
                    return (await other.execute(waits)).rowcount > 0

            await eventually(is_waiting)

        await router.hang_up_after(2, world.ref("one"), count_in_vain)

        async def has_noticed() -> bool:
            ended = [span for span in router.spans.get_finished_spans() if span.kind is SpanKind.SERVER]
            return any(span.name.endswith("/Generate") for span in ended)

        await eventually(has_noticed)

    async with open_database(world.dsn.app, name="test", max_connections=1) as database:

        async def is_counted() -> bool:
            async with database.transaction(router.tenant) as connection:
                counted = await connection.execute(
                    "select sum(token_count)::int as tokens from budget_periods"
                )
                row = await counted.fetchone()
            # The provider reports 25 tokens or more. The estimate would be 3.
            return row is not None and row["tokens"] >= 25

        await eventually(is_counted)
    assert world.provider.asked("one") == 1


async def test_Generate__an_answer_that_breaks_is_paid_for(world: World) -> None:
    broken = [
        chunk({"role": "assistant", "content": "Hal"}),
        {"error": {"message": "oops", "code": "server_error"}},
    ]
    world.provider.on("one", slowly(*broken), sse(*chat("one")))
    router = await world.router(priced(world, world.ref("one"), input=1, output=1))
    # 70 tokens of the question, and 1 of the answer.
    await router.prepare(1, max_spend_micros_per_day=71)
    assert (await router.generate(world.ref("one"), messages=HELLO)).refused.reason is Reason.STREAM_BROKEN
    assert await is_spent(router, world.ref("one")) == "spend_per_day"


@pytest.mark.parametrize(
    ("answering", "reason"),
    [
        (BROKEN, Reason.ALL_CANDIDATES_FAILED),
        (openai_error(400, "maximum context length", "x", "context_length_exceeded"), Reason.MODEL_REFUSED),
    ],
)
async def test_Generate__a_provider_that_only_fails_costs_nothing(
    world: World, answering: Answering, reason: Reason
) -> None:
    world.provider.on("one", answering)
    router = await world.router(priced(world, world.ref("one"), input=1, output=1))
    await router.prepare(1, max_spend_micros_per_day=1, max_tokens_per_minute=1)
    assert (await router.generate(world.ref("one"), strict=True)).refused.reason is reason
    answered = await router.generate(f"{world.anthropic}/claude")
    assert answered.text == "I read it."


async def test_Generate__the_refusal_has_retry_info(world: World) -> None:
    router = await world.router()
    await time_left_in(MINUTE)
    await router.prepare(1, max_tokens_per_minute=1)
    first: Answered = await router.generate(world.ref("one"))
    assert first.text == "one"
    request = pb.GenerateRequest(model=world.ref("one"), messages=[user("hello")])
    async with grpc.aio.insecure_channel(router.target) as channel:
        call = ModelRouterServiceStub(channel).Generate(
            request, metadata=(("authorization", f"Bearer {router.token}"),), timeout=60
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers = dict(refused.value.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    told = {detail.type_url.rpartition(".")[2]: detail for detail in status.details}
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert told["ErrorInfo"].Unpack(info)
    assert told["RetryInfo"].Unpack(retry)
    assert (info.reason, info.metadata["budget"]) == ("BUDGET_EXCEEDED", "tokens_per_minute")
    assert 0 < retry.retry_delay.ToMilliseconds() <= 60_000
