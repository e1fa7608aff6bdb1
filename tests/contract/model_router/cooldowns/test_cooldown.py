"""Cooldowns of models and credentials: skipped without a call, shared by all replicas, never
shortened.
"""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from aiohttp import web
from psycopg.rows import dict_row
from spawnmesh_core.reasons import Reason
from spawnmesh_model_router.domain.cooldown import Audience, Cooldown, CooldownTarget, Scope, extend, merge
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.store import cooldowns as store
from spawnmesh_model_router.store.cooldowns import CooldownRecord
from spawnmesh_postgres.database import ALL_TENANTS, open_database

from tests.support.model_router.fixtures import World
from tests.support.model_router.provider import RATE_LIMITED, chat, openai_error, sse
from tests.support.waiting import eventually

BAD_KEY = openai_error(401, "Incorrect API key provided", "invalid_request_error", "invalid_api_key")


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("two", sse(*chat("from two")))
    return world


async def saved(world: World) -> dict[str, dict[str, object]]:
    """Return the rows of this test's providers, as the role of the service sees them.

    Each target has one tenant's row.
    """
    async with await psycopg.AsyncConnection.connect(world.dsn.app, row_factory=dict_row) as connection:
        await connection.execute("set local spawnmesh.tenant = '*'")
        cursor = await connection.execute("select * from cooldowns")
        return {
            row["target"]: row for row in await cursor.fetchall() if row["target"].startswith(world.scripted)
        }


async def test_Generate__a_cooling_candidate_is_not_dialled(world: World) -> None:
    world.provider.on("one", RATE_LIMITED)
    router = await world.router()
    before = datetime.now(UTC)
    await router.generate(world.ref("one"), world.ref("two"))
    after = datetime.now(UTC)
    answered = await router.generate(world.ref("one"), world.ref("two"))
    assert answered.kinds == ["attempt_started", "text_delta", "completion"]
    assert answered.verdicts == [("one", "COOLING", "RATE_LIMIT"), ("two", "ANSWERED", "UNSPECIFIED")]
    until = answered.completion.verdicts[0].cooling_until_time.ToDatetime(tzinfo=UTC)
    assert before + timedelta(seconds=25) < until <= after + timedelta(seconds=30)
    assert world.provider.asked("one") == 1


async def test_Generate__when_all_are_cooling_nobody_is_called(world: World) -> None:
    world.provider.on("one", RATE_LIMITED)
    router = await world.router()
    await router.generate(world.ref("one"))
    answered = await router.generate(world.ref("one"))
    assert answered.events == []
    assert answered.refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert answered.refused.facts["candidate_1"].startswith(f"{world.ref('one')} COOLING RATE_LIMIT until ")
    assert answered.refused.retry_after_seconds is not None
    assert answered.refused.retry_after_seconds > 25
    assert world.provider.asked("one") == 1


async def test_Generate__another_replica_knows_within_200_ms(world: World) -> None:
    world.provider.on("one", RATE_LIMITED)
    first = await world.router()
    second = await world.router(tenant=first.tenant)
    await second.generate(world.ref("two"))  # Its connection is up.
    await first.generate(world.ref("one"), world.ref("two"))

    # Until the second replica knows, it calls, and gets a failure that neither starts nor ends a
    # cooldown.
    world.provider.on("one", openai_error(400, "image exceeds 5 MB maximum", "invalid_request_error", None))

    async def cooling() -> bool:
        answered = await second.generate(world.ref("one"), world.ref("two"))
        return answered.refusal is None and answered.verdicts[0][1] == "COOLING"

    # Without the notification the other replica would read the cooldown after up to 30 s.
    await eventually(cooling)


async def test_Generate__a_restarted_replica_still_knows(world: World) -> None:
    world.provider.on("one", RATE_LIMITED)
    first = await world.router()
    await first.generate(world.ref("one"), world.ref("two"))

    async def is_saved() -> bool:
        return world.ref("one") in await saved(world)

    await eventually(is_saved)
    answered = await (await world.router(tenant=first.tenant)).generate(world.ref("one"), world.ref("two"))
    assert answered.verdicts[0] == ("one", "COOLING", "RATE_LIMIT")


async def test_Generate__an_answer_ends_the_count_of_failures(world: World) -> None:
    world.provider.on("one", sse(*chat("works")))
    past = datetime.now(UTC) - timedelta(minutes=1)
    target = CooldownTarget(Scope.MODEL, world.ref("one"))
    rest = CooldownRecord(Cooldown(Scope.MODEL, past, 7, FailoverReason.RATE_LIMIT, past), past)
    async with (
        open_database(world.dsn.app, name="test", max_connections=1) as database,
        database.transaction(ALL_TENANTS) as connection,
    ):
        await store.extend_cooldown(connection, target, rest)
    assert (await (await world.router()).generate(world.ref("one"))).text == "works"

    async def forgotten() -> bool:
        return world.ref("one") not in await saved(world)

    await eventually(forgotten)


async def test_Generate__an_answer_that_began_before_the_failure_ends_no_rest(world: World) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def late(request: web.Request) -> web.StreamResponse:
        asked.set()
        await go_on.wait()
        return await sse(*chat("late"))(request)

    world.provider.on("one", late, RATE_LIMITED)
    router = await world.router()
    slow = asyncio.create_task(router.generate(world.ref("one")))
    await asked.wait()
    await router.generate(world.ref("one"), world.ref("two"))
    go_on.set()
    assert (await slow).text == "late"
    assert (await router.generate(world.ref("one"), world.ref("two"))).verdicts[0] == (
        "one",
        "COOLING",
        "RATE_LIMIT",
    )


async def test_Generate__the_primary_is_probed_before_its_rest_is_over_and_nobody_else(world: World) -> None:
    now = datetime.now(UTC)
    async with open_database(world.dsn.app, name="test", max_connections=1) as database:
        for model in ("one", "two"):  # They failed a minute ago and have a minute to go.
            failed = now - timedelta(seconds=60)
            rest = Cooldown(Scope.MODEL, now + timedelta(seconds=60), 2, FailoverReason.RATE_LIMIT, failed)
            async with database.transaction(ALL_TENANTS) as connection:
                await store.extend_cooldown(
                    connection, CooldownTarget(Scope.MODEL, world.ref(model)), CooldownRecord(rest, failed)
                )
    world.provider.on("one", RATE_LIMITED, sse(*chat("recovered")))
    router = await world.router()
    assert await router.explain(world.ref("one"), world.ref("two")) == [("one", "PROBE"), ("two", "COOLING")]
    probed = await router.generate(world.ref("two"), world.ref("one"))
    assert probed.refused.reason is Reason.ALL_CANDIDATES_FAILED
    assert (world.provider.asked("one"), world.provider.asked("two")) == (1, 0)
    again = await router.generate(
        world.ref("one"), world.ref("two")
    )  # It failed: its cooldown is longer now, and no probe follows at once.
    assert "COOLING" in str(again.refused.facts["candidate_1"])
    assert world.provider.asked("one") == 1


async def test_extend_cooldown__the_statement_and_the_domain_agree_and_no_rest_moves_earlier(
    world: World,
) -> None:
    now, any_order = datetime.now(UTC), random.Random(1)
    target = CooldownTarget(Scope.MODEL, world.ref("one"))

    def any_rest() -> Cooldown:
        until, failed_at = (now + timedelta(seconds=any_order.choice((30, 60, 61, 90))) for _ in range(2))
        reason = any_order.choice((FailoverReason.RATE_LIMIT, FailoverReason.SERVER_ERROR))
        return Cooldown(Scope.MODEL, until, any_order.randint(1, 3), reason, failed_at)

    async with open_database(world.dsn.app, name="test", max_connections=2) as database:
        for _ in range(10):
            expected = None
            for written in (any_rest() for _ in range(4)):
                async with database.transaction(ALL_TENANTS) as connection:
                    await store.extend_cooldown(
                        connection, target, CooldownRecord(written, written.failed_at)
                    )
                    kept = (await store.list_cooldowns(connection))[target].cooldown
                assert expected is None or kept.until >= expected.until
                expected = written if expected is None else merge(expected, written)
                assert kept == expected
            async with database.transaction(ALL_TENANTS) as connection:
                await store.delete_cooldown(connection, target)


async def test_extend_cooldown__a_failure_that_does_not_lengthen_the_rest_is_counted(world: World) -> None:
    now = datetime.now(UTC)
    target, until = CooldownTarget(Scope.MODEL, world.ref("one")), now + timedelta(hours=1)
    first = Cooldown(Scope.MODEL, until, 1, FailoverReason.RATE_LIMIT, now)
    probed = extend(
        first, FailoverReason.RATE_LIMIT, now + timedelta(minutes=58), audience=Audience.ALL_TENANTS
    )
    assert probed is not None
    assert (probed.until, probed.failures) == (until, 2)
    async with (
        open_database(world.dsn.app, name="test", max_connections=2) as database,
        database.transaction(ALL_TENANTS) as connection,
    ):
        for cooldown in (
            first,
            probed,
            first,
        ):  # The last one is from a replica that does not know of the probe.
            await store.extend_cooldown(connection, target, CooldownRecord(cooldown, cooldown.failed_at))
        assert (await store.list_cooldowns(connection))[target].cooldown == probed


async def test_Generate__a_failure_that_asks_for_a_longer_rest_moves_the_end_of_one_that_has_begun(
    world: World,
) -> None:
    both_ask, one_rests = asyncio.Barrier(2), asyncio.Event()

    async def at_once(request: web.Request) -> web.StreamResponse:
        await both_ask.wait()
        return await RATE_LIMITED(request)

    async def later(request: web.Request) -> web.StreamResponse:
        await both_ask.wait()
        await one_rests.wait()
        limited = openai_error(
            429, "Rate limit reached", "requests", "rate_limit_exceeded", retry_after="3600"
        )
        return await limited(request)

    world.provider.on("one", at_once, later)
    router = await world.router()
    calls = [asyncio.create_task(router.generate(world.ref("one"), strict=True)) for _ in range(2)]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    one_rests.set()
    await asyncio.wait(calls)

    async def is_saved() -> bool:
        rows = await saved(world)
        until = rows.get(world.ref("one"), {}).get("until_time")
        return isinstance(until, datetime) and timedelta(seconds=3500) < until - datetime.now(UTC)

    refused = (await router.generate(world.ref("one"), strict=True)).refused
    assert refused.retry_after_seconds is not None
    assert refused.retry_after_seconds > 3500
    await eventually(is_saved)


async def test_end_cooldown__not_by_a_call_that_began_before_the_failure(world: World) -> None:
    now = datetime.now(UTC)
    target = CooldownTarget(Scope.MODEL, world.ref("one"))
    rest = CooldownRecord(
        Cooldown(Scope.MODEL, now + timedelta(hours=1), 1, FailoverReason.RATE_LIMIT, now), now
    )
    async with (
        open_database(world.dsn.app, name="test", max_connections=1) as database,
        database.transaction(ALL_TENANTS) as connection,
    ):
        await store.extend_cooldown(connection, target, rest)
        await store.end_cooldown(connection, target, now - timedelta(seconds=1))
        assert target in await store.list_cooldowns(connection)
        await store.end_cooldown(connection, target, now + timedelta(seconds=1))
        assert target not in await store.list_cooldowns(connection)


async def test_cooldowns__a_tenant_has_rows_of_its_own(world: World) -> None:
    now = datetime.now(UTC)
    rest = CooldownRecord(Cooldown(Scope.MODEL, now, 1, FailoverReason.RATE_LIMIT, now), now)
    target = CooldownTarget(Scope.MODEL, world.ref("one"))
    rows = (target, target.of_tenant("acme"), target.of_tenant("globex"))
    async with open_database(world.dsn.app, name="test", max_connections=1) as database:
        async with database.transaction(ALL_TENANTS) as connection:
            for row in rows:
                await store.extend_cooldown(connection, row, rest)
        for scope, seen in {ALL_TENANTS: rows, "acme": rows[1:2], "initech": ()}.items():
            async with database.transaction(scope) as connection:
                listed = await store.list_cooldowns(connection)
            assert {one for one in listed if one.name == target.name} == set(seen)
        async with database.transaction("acme") as connection:
            for foreign in ("globex", ALL_TENANTS):
                deleted = await connection.execute("delete from cooldowns where tenant_id = %s", (foreign,))
                assert deleted.rowcount == 0
            assert (await connection.execute("delete from unconfirmed_failures")).rowcount == 0


async def test_extend_cooldown__deletes_what_is_forgotten_of_the_tenant(world: World) -> None:
    now = datetime.now(UTC)
    recent, forgotten = now - timedelta(hours=23), now - timedelta(hours=25)
    acme, globex = (f"{world.scripted}-{name}" for name in ("acme", "globex"))

    def target(model: str, tenant_id: str) -> CooldownTarget:
        return CooldownTarget(Scope.MODEL, world.ref(model), tenant_id)

    async with open_database(world.dsn.app, name="test", max_connections=1) as database:
        async with database.transaction(ALL_TENANTS) as connection:
            for tenant_id, model, until in (
                (globex, "one", forgotten),
                (acme, "one", forgotten),
                (acme, "two", recent),
                (acme, "blind", now),
            ):
                cooldown = Cooldown(Scope.MODEL, until, 1, FailoverReason.TIMEOUT, until)
                await store.extend_cooldown(
                    connection, target(model, tenant_id), CooldownRecord(cooldown, until)
                )
        async with database.transaction(ALL_TENANTS) as connection:
            listed = await store.list_cooldowns(connection)
            stored = {
                one: await store.get_cooldown(connection, one)
                for one in (target("one", acme), target("two", acme), target("one", globex))
            }
    assert {one for one in listed if one.tenant_id in (acme, globex)} == {
        target("two", acme),
        target("blind", acme),
    }
    assert [one for one, record in stored.items() if record is None] == [target("one", acme)]


async def test_Generate__a_second_credential_is_tried_at_once(world: World) -> None:
    world.provider.on("one", BAD_KEY, sse(*chat("with the other key")))
    config = world.config()
    config["providers"][world.scripted]["credentials"] = ["env:KEY", "env:OTHER_KEY"]
    router = await world.router(config)
    answered = await router.generate(world.ref("one"))
    assert answered.text == "with the other key"
    assert answered.verdicts == [("one", "ANSWERED", "UNSPECIFIED")]
    refused, worked = world.provider.keys
    assert refused != worked
    for _ in range(3):  # The refused key is in cooldown, for all models of the provider.
        assert (await router.generate(world.ref("two"))).text == "from two"
    assert world.provider.keys[2:] == [worked] * 3


async def test_Generate__credentials_take_turns(world: World) -> None:
    config = world.config()
    config["providers"][world.scripted]["credentials"] = ["env:KEY", "env:OTHER_KEY"]
    router = await world.router(config)
    for _ in range(4):
        await router.generate(world.ref("two"))
    first, second, *others = world.provider.keys
    assert {first, second} == set(world.environ.values())
    assert others == [first, second]


async def test_Generate__two_rate_limited_credentials_rest_the_model(world: World) -> None:
    world.provider.on("one", RATE_LIMITED)
    config = world.config()
    config["providers"][world.scripted]["credentials"] = ["env:KEY", "env:OTHER_KEY"]
    router = await world.router(config)
    answered = await router.generate(world.ref("one"), world.ref("two"))
    assert answered.verdicts[0] == ("one", "FAILED", "RATE_LIMIT")
    assert len(set(world.provider.keys[:2])) == 2
    answered = await router.generate(world.ref("one"), world.ref("two"))
    assert answered.verdicts[0] == ("one", "COOLING", "RATE_LIMIT")


async def test_Generate__a_key_file_that_is_renewed_does_not_inherit_the_rest(
    world: World, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("sk-old\n")
    config = world.config()
    config["providers"][world.scripted]["credentials"] = [f"file:{file}"]
    world.provider.on("one", BAD_KEY, sse(*chat("with the new key")))
    router = await world.router(config)
    assert (await router.generate(world.ref("one"))).refused.facts["candidate_1"].endswith("FAILED AUTH")
    assert (await router.generate(world.ref("one"))).refused.facts["candidate_1"].split()[1:3] == [
        "COOLING",
        "AUTH",
    ]
    file.write_text("sk-new-one\n")
    assert (await router.generate(world.ref("one"))).text == "with the new key"
    assert world.provider.keys == ["sk-old", "sk-new-one"]


async def test_Generate__a_provider_without_a_readable_key_is_not_called(world: World) -> None:
    config = world.config()
    config["providers"][world.anthropic]["credentials"] = ["env:NOT_SET"]
    answered = await (await world.router(config)).generate(f"{world.anthropic}/claude", world.ref("two"))
    assert answered.verdicts[0] == ("claude", "INCAPABLE", "AUTH")
    assert answered.text == "from two"
