"""The limits of tenants: whose hold, what they count, and what a refusal says."""

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_runtime.call import Call
from spawnmesh_runtime.call_limits import CallLimits, DefaultCallLimits
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.interceptors.limits import limited_calls, rated_calls
from spawnmesh_runtime.methods import CallPolicy
from spawnmesh_runtime.revoked_tokens import RevokedTokens
from spawnmesh_runtime.rpc_class import RpcClass
from spawnmesh_runtime.settings import load_settings

POLICY = CallPolicy(frozenset(CallerKind), frozenset())
READ, WRITE, MIB = RpcClass.READ, RpcClass.WRITE, 1024 * 1024


class Now:
    """A clock that the test sets."""

    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def limits(now: Now) -> CallLimits:
    return CallLimits(DefaultCallLimits.model_validate({"read": {"calls_per_second": 2}}), monotonic=now)


def admitted(limits: CallLimits, tenant_id: str, count: int, rpc_class: RpcClass = READ) -> int:
    """Return how many of so many calls are admitted."""
    number = 0
    for _ in range(count):
        try:
            limits.admit(tenant_id, rpc_class)
            number += 1
        except MeshError:
            pass
    return number


def refusal(limits: CallLimits, tenant_id: str, rpc_class: RpcClass = READ) -> MeshError:
    with pytest.raises(MeshError) as refused:
        limits.admit(tenant_id, rpc_class)
    return refused.value


def test_a_tenant_and_a_class_do_not_use_up_what_others_have(limits: CallLimits, now: Now) -> None:
    assert admitted(limits, "acme", 10) == 2
    assert admitted(limits, "beta", 10) == 2
    assert admitted(limits, "acme", 10, WRITE) == 10
    now.seconds += 0.5
    assert admitted(limits, "acme", 10) == 1


def test_refusal_says_the_class_the_limit_and_when_to_call_again(limits: CallLimits, now: Now) -> None:
    admitted(limits, "acme", 2)
    now.seconds += 0.1
    error = refusal(limits, "acme")
    assert (error.reason, error.status) == (Reason.RATE_LIMITED, Status.RESOURCE_EXHAUSTED)
    assert error.facts == {"rpc_class": "READ", "limit": "calls_per_second", "max_per_second": "2"}
    assert error.retry_after_seconds == pytest.approx(0.4)
    now.seconds += 0.4
    assert admitted(limits, "acme", 2) == 1


def test_own_limits_hold_from_the_next_call_and_the_rest_has_the_defaults(limits: CallLimits) -> None:
    assert admitted(limits, "acme", 10) == 2
    limits.set_tenant("acme", {READ: {"calls_per_second": 5}})
    assert admitted(limits, "acme", 10) == 5
    assert limits.limits_of("acme", READ).bytes_per_second == 64 * MIB
    assert limits.limits_of("acme", WRITE) == limits.limits_of("beta", WRITE)
    limits.set_tenant("acme", {})
    assert admitted(limits, "acme", 10) == 2


def test_limits_that_are_told_again_do_not_fill_the_bucket(limits: CallLimits) -> None:
    own: dict[RpcClass, Any] = {READ: {"calls_per_second": 5}}
    limits.replace_all({"acme": own})
    assert admitted(limits, "acme", 10) == 5
    limits.replace_all({"acme": own, "beta": own})
    assert admitted(limits, "acme", 10) == 0
    limits.replace_all({})
    assert limits.limits_of("beta", READ).calls_per_second == 2


def test_bytes_are_owed_by_the_calls_that_come_after(limits: CallLimits, now: Now) -> None:
    limits.set_tenant("acme", {WRITE: {"bytes_per_second": MIB}})
    first, second = limits.admit("acme", WRITE), limits.admit("acme", WRITE)
    first.count(bytes(3 * MIB))
    with pytest.raises(MeshError) as refused:  # It was admitted before the first one was read.
        second.count(bytes(3 * MIB))
    assert refused.value.retry_after_seconds == pytest.approx(2.0)
    error = refusal(limits, "acme", WRITE)
    assert error.facts["limit"] == "bytes_per_second"
    now.seconds += 2.0
    limits.admit("acme", WRITE).count(b"x")


async def test_a_stream_owes_its_bytes_and_is_not_refused(limits: CallLimits, now: Now) -> None:
    limits.set_tenant("acme", {WRITE: {"bytes_per_second": MIB}})
    stream = limits.admit("acme", WRITE)
    await stream.count_of_stream(bytes(3 * MIB))
    assert limits.seconds_of_debt("acme", WRITE) == pytest.approx(2.0)
    next_one = asyncio.ensure_future(stream.count_of_stream(bytes(MIB)))
    await asyncio.sleep(0)
    assert not next_one.done()
    next_one.cancel()
    now.seconds += 2.0
    await stream.count_of_stream(bytes(MIB))


def test_number_of_tenants_that_are_remembered_is_bounded(limits: CallLimits) -> None:
    assert admitted(limits, "acme", 2) == 2
    for number in range(10_000):
        limits.admit(f"t-{number}", READ)
    assert admitted(limits, "acme", 2) == 2


def test_defaults_of_the_environment_complete_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    from spawnmesh_hook.settings import HookSettings

    monkeypatch.setenv("HOOK_DATABASE_URL", "postgresql://hook@localhost/hook")
    monkeypatch.setenv("HOOK_CALL_LIMITS", json.dumps({"scan": {"concurrent_call_count": 3}}))
    chosen = load_settings(HookSettings).call_limits
    assert (chosen.scan.concurrent_call_count, chosen.scan.calls_per_second) == (3, 200)
    assert chosen.read == DefaultCallLimits().read
    monkeypatch.setenv("HOOK_CALL_LIMITS", json.dumps({"scan": {"calls_per_second": 0}}))
    with pytest.raises(SystemExit, match=r"HOOK_CALL_LIMITS\.SCAN\.CALLS_PER_SECOND"):
        load_settings(HookSettings)


@pytest.mark.parametrize("given", [{"scans": {}}, {"scan": {"calls": 1}}, {"read": {"bytes_per_second": 1}}])
def test_defaults_that_are_unknown_or_out_of_bounds_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DefaultCallLimits.model_validate(given)


async def test_a_watch_without_a_place_is_refused_at_once_and_other_kinds_of_callers_are_not(
    limits: CallLimits,
) -> None:
    limits.set_tenant("acme", {RpcClass.WATCH: {"concurrent_call_count": 1}})
    ends = asyncio.Event()

    async def watch(call: Call) -> str:
        await ends.wait()
        return "ended"

    step = limited_calls(watch, replace(POLICY, rpc_class=RpcClass.WATCH), limits)

    def call_of(caller: Caller) -> asyncio.Future[object]:
        context: Any = None
        return asyncio.ensure_future(step(Call(context, caller=caller)))

    client = Caller(CallerKind.CLIENT, "ann", "acme")
    held = call_of(client)
    await asyncio.sleep(0)
    second = call_of(client)
    for _ in range(3):
        await asyncio.sleep(0)
    assert second.done()  # It did not wait.
    with pytest.raises(MeshError) as refused:
        await second
    others = [
        call_of(Caller(CallerKind.RUN, "run", "acme")),
        call_of(Caller(CallerKind.CLIENT, "bob", "beta")),
        call_of(Caller(CallerKind.ADMIN, "operator")),
    ]
    ends.set()
    assert await asyncio.gather(held, *others) == ["ended"] * 4
    assert (refused.value.reason, refused.value.facts["pool"]) == (Reason.POOL_EXHAUSTED, "WATCH calls")
    assert refused.value.retry_after_seconds is not None
    assert await call_of(client) == "ended"


async def test_revoked_tokens_do_not_use_up_what_the_tenant_may_call(limits: CallLimits) -> None:
    revoked = RevokedTokens(max_count=10, max_run_count=10)
    revoked.add("acme/stolen", utc_now().timestamp() + 3600)

    async def refusal_of(call: Call) -> MeshError | None:
        return call.rate_refusal

    step = rated_calls(refusal_of, READ, limits, POLICY, revoked)

    async def refused(key: str) -> bool:
        context: Any = None
        caller = Caller(CallerKind.CLIENT, "ann", "acme", revocation_key=key)
        return await step(Call(context, caller=caller)) is not None

    assert [await refused("acme/stolen") for _ in range(5)] == [False] * 5
    assert [await refused("acme/own") for _ in range(3)] == [False, False, True]


HARNESS = Caller(CallerKind.RUN, "run_1", "acme", run_id="run_1", harness_token_id="tok_1")
LIMITED_RUNNER = Caller(CallerKind.RUNNER, "harness", tenants=frozenset({"acme"}), revocation_key="/tok_1")


@pytest.mark.parametrize(
    ("caller", "refused_count"),
    [
        (HARNESS, 3),
        (LIMITED_RUNNER, 3),
        (Caller(CallerKind.RUN, "run_1", "acme"), 0),
        (Caller(CallerKind.RUNNER, "runner"), 0),
        (Caller(CallerKind.SERVICE, "hook", "acme", service="hook"), 0),
        (Caller(CallerKind.ADMIN, "operator", revocation_key="/tok_2"), 0),
    ],
)
async def test_harnesses_have_rates_and_the_mesh_itself_has_none(
    limits: CallLimits, caller: Caller, refused_count: int
) -> None:
    async def answered(call: Call) -> str:
        return "answered"

    places = limited_calls(answered, replace(POLICY, rpc_class=READ), limits)
    step = rated_calls(places, READ, limits, POLICY, RevokedTokens(max_count=1, max_run_count=1))
    context: Any = None
    calls = [step(Call(context, caller=caller)) for _ in range(5)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refusals = [one.reason for one in outcomes if isinstance(one, MeshError)]
    assert refusals == [Reason.RATE_LIMITED] * refused_count


@pytest.mark.parametrize(("checks_run", "limited"), [(True, True), (False, False)])
async def test_harness_of_an_ended_run_has_rates_where_the_rpc_itself_finds_out(
    limits: CallLimits, checks_run: bool, limited: bool
) -> None:
    revoked = RevokedTokens(max_count=10, max_run_count=10)
    ended = replace(HARNESS, revocation_key="acme/run_1")
    revoked.add(ended.revocation_key, utc_now().timestamp() + 3600)

    async def refusal_of(call: Call) -> MeshError | None:
        return call.rate_refusal

    step = rated_calls(refusal_of, READ, limits, replace(POLICY, checks_run=checks_run), revoked)
    context: Any = None
    refusals = [await step(Call(context, caller=ended)) for _ in range(3)]
    assert (refusals[-1] is not None) is limited


async def test_harnesses_clients_and_runs_of_a_tenant_have_rates_and_places_of_their_own(
    limits: CallLimits,
) -> None:
    limits.set_tenant("acme", {RpcClass.WATCH: {"concurrent_call_count": 1, "calls_per_second": 3}})
    ends = asyncio.Event()

    async def watch(call: Call) -> str:
        await ends.wait()
        return "ended"

    context: Any = None

    def call_of(caller: Caller, *, has_places: bool) -> asyncio.Future[object]:
        policy = replace(POLICY, rpc_class=RpcClass.WATCH if has_places else None)
        places = limited_calls(watch, policy, limits)
        revoked = RevokedTokens(max_count=1, max_run_count=1)
        step = rated_calls(places, RpcClass.WATCH, limits, POLICY, revoked)
        return asyncio.ensure_future(step(Call(context, caller=caller)))

    run, client = Caller(CallerKind.RUN, "run_2", "acme"), Caller(CallerKind.CLIENT, "ann", "acme")
    held = [call_of(HARNESS, has_places=True), call_of(client, has_places=True)]
    await asyncio.sleep(0)
    for caller in (HARNESS, client):
        with pytest.raises(MeshError) as refused:
            await call_of(caller, has_places=True)
        assert refused.value.reason is Reason.POOL_EXHAUSTED
        held.append(call_of(caller, has_places=False))
    held += [call_of(run, has_places=False), call_of(run, has_places=False), call_of(run, has_places=True)]
    ends.set()
    assert await asyncio.gather(*held) == ["ended"] * 7


async def test_steps_of_harnesses_have_places_and_those_of_the_meshs_runners_and_heartbeats_need_none(
    limits: CallLimits,
) -> None:
    limits.set_tenant("acme", {WRITE: {"concurrent_call_count": 2}})
    ends, begun = asyncio.Event(), 0

    async def work(call: Call) -> str:
        nonlocal begun
        begun += 1
        await ends.wait()
        return "ended"

    context: Any = None

    async def called(caller: Caller, count: int, policy: CallPolicy) -> list[asyncio.Task[object]]:
        step = limited_calls(work, policy, limits)
        calls = [asyncio.ensure_future(_awaited(step(Call(context, caller=caller)))) for _ in range(count)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return calls

    limited, heartbeat = replace(POLICY, limited_step=True), POLICY
    waiting = await called(HARNESS, 5, limited)
    assert begun == 2
    assert len(waiting) == 5
    others = [
        *await called(HARNESS, 3, heartbeat),
        *await called(Caller(CallerKind.RUN, "run_2", "acme"), 3, limited),
        *await called(replace(HARNESS, tenant_id="beta"), 1, limited),
        *await called(HARNESS, 2, replace(POLICY, rpc_class=WRITE)),
    ]
    assert begun == 2 + len(others)
    waiting += await called(HARNESS, 1024 - 3, limited)  # As many as may wait.
    with pytest.raises(MeshError) as refused:
        await (await called(HARNESS, 1, limited))[0]
    assert (refused.value.reason, refused.value.status) == (Reason.POOL_EXHAUSTED, Status.RESOURCE_EXHAUSTED)
    assert refused.value.facts["pool"] == "RUN calls"
    assert refused.value.retry_after_seconds is not None
    ends.set()
    assert set(await asyncio.gather(*waiting, *others)) == {"ended"}


async def _awaited(call: Awaitable[object]) -> object:
    return await call
