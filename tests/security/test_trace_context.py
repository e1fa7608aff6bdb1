"""A client can neither write into another trace nor decide whether its calls are recorded."""

from pathlib import Path

import grpc.aio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of
from spawnmesh_runtime.tokens import HarnessClaim, TokenMinter

from tests.support.security.attacked import Attacked, open_attacked
from tests.support.security.raw_calls import METHODS, allowed_token, bearer, refused, token_of

TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
OF_CLIENTS = METHODS["spawnmesh.session.v1.SessionService.GetSession"]
OF_RUNS = METHODS["spawnmesh.session.v1.RunService.HeartbeatRun"]
TRUSTED = (CallerKind.SERVICE, CallerKind.RUN, CallerKind.RUNNER)


def traceparent(flags: str) -> tuple[str, str]:
    return "traceparent", f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-{flags}"


async def only_span(attacked: Attacked) -> ReadableSpan:
    await attacked.settled()
    [span] = attacked.spans.get_finished_spans()
    return span


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


@pytest.mark.parametrize("flags", ["00", "01"])
@pytest.mark.parametrize("kind", [CallerKind.CLIENT, CallerKind.ADMIN, None])
async def test_span_of_an_untrusted_call_is_recorded_in_its_own_trace_with_a_link(
    attacked: Attacked, channel: grpc.aio.Channel, kind: CallerKind | None, flags: str
) -> None:
    token = () if kind is None else (bearer(token_of(attacked.keys, kind)),)
    await refused(channel, OF_CLIENTS, b"", headers=(*token, traceparent(flags)))
    span = await only_span(attacked)
    assert (span.parent, linked(span)) == (None, [(TRACE_ID, SPAN_ID)])
    assert span.context.trace_id != TRACE_ID
    assert span.context.trace_flags.sampled


@pytest.mark.parametrize("kind", TRUSTED)
async def test_span_of_a_call_of_the_mesh_continues_its_trace_and_its_sampling(
    attacked: Attacked, channel: grpc.aio.Channel, kind: CallerKind
) -> None:
    method = next(one for one in METHODS.values() if kind in policy_of(one).callers)
    service = min(policy_of(method).services, default="")
    token = bearer(token_of(attacked.keys, kind, service))
    await refused(channel, method, b"", headers=(token, traceparent("00")))
    await refused(channel, method, b"", headers=(token, traceparent("01")))
    span = await only_span(attacked)
    assert (span.context.trace_id, linked(span)) == (TRACE_ID, [])
    assert span.parent is not None
    assert span.parent.span_id == SPAN_ID


async def test_client_of_a_trusted_issuer_continues_its_trace(keys: Path) -> None:
    async with (
        open_attacked(keys, trace_parent_issuers=["client"]) as attacked,
        grpc.aio.insecure_channel(attacked.target) as channel,
    ):
        headers = (bearer(token_of(keys, CallerKind.CLIENT)), traceparent("01"))
        await refused(channel, OF_CLIENTS, b"", headers=headers)
        span = await only_span(attacked)
    assert (span.context.trace_id, linked(span)) == (TRACE_ID, [])


async def test_no_rpc_continues_the_trace_of_a_client(attacked: Attacked, channel: grpc.aio.Channel) -> None:
    for method in METHODS.values():
        if policy_of(method).callers & {CallerKind.CLIENT, CallerKind.ADMIN}:
            kind = CallerKind.CLIENT if CallerKind.CLIENT in policy_of(method).callers else CallerKind.ADMIN
            headers = (bearer(token_of(attacked.keys, kind)), traceparent("00"))
            await refused(channel, method, b"\xff", headers=headers)
    await attacked.settled()
    spans = attacked.spans.get_finished_spans()
    assert len(spans) > 50
    assert {span.parent for span in spans} == {None}
    assert TRACE_ID not in {span.context.trace_id for span in spans}


@pytest.mark.parametrize("value", ["rubbish", "", "00-" + "0" * 32 + "-b7ad6b7169203331-01"])
async def test_traceparent_that_is_malformed_is_no_link(
    attacked: Attacked, channel: grpc.aio.Channel, value: str
) -> None:
    headers = (bearer(allowed_token(attacked.keys, OF_CLIENTS)), ("traceparent", value))
    await refused(channel, OF_CLIENTS, b"", headers=headers)
    span = await only_span(attacked)
    assert (span.parent, linked(span)) == (None, [])


def harness_token(keys: Path, own: str) -> tuple[str, str]:
    minter = TokenMinter("session", keys / "session.pem")
    return bearer(minter.run_token("acme", "ses_1", "run_1", 1, 60.0, harness=HarnessClaim("tok_1", own)))


@pytest.mark.parametrize("flags", ["00", "01"])
async def test_harness_continues_the_trace_of_its_session_and_cannot_switch_recording_off(
    attacked: Attacked, channel: grpc.aio.Channel, flags: str
) -> None:
    own = f"00-{TRACE_ID:032x}-00000000000000ff-01"
    headers = (harness_token(attacked.keys, own), traceparent(flags))
    await refused(channel, OF_RUNS, b"", headers=headers)
    span = await only_span(attacked)
    assert (span.context.trace_id, linked(span)) == (TRACE_ID, [])
    assert span.parent is not None
    assert span.parent.span_id == SPAN_ID
    assert span.context.trace_flags.sampled


@pytest.mark.parametrize("own", ["", f"00-{TRACE_ID + 1:032x}-00000000000000ff-01"])
async def test_harness_does_not_write_into_another_trace(
    attacked: Attacked, channel: grpc.aio.Channel, own: str
) -> None:
    headers = (harness_token(attacked.keys, own), traceparent("00"))
    await refused(channel, OF_RUNS, b"", headers=headers)
    span = await only_span(attacked)
    assert (span.parent, linked(span)) == (None, [(TRACE_ID, SPAN_ID)])
    assert span.context.trace_flags.sampled


async def test_call_that_waits_starts_no_trace_and_continues_that_of_the_mesh(
    attacked: Attacked, channel: grpc.aio.Channel
) -> None:
    waiting = {name: method for name, method in METHODS.items() if policy_of(method).waits}
    assert {name.rpartition(".")[2] for name in waiting} == {
        "ClaimRuns",
        "FollowEntries",
        "WaitOperation",
        "WaitSession",
        "WatchActivities",
        "WatchCallLimits",
        "WatchRevokedTokens",
        "WatchRunChanges",
        "WatchSession",
        "WatchTranscript",
    }
    for method in waiting.values():
        await refused(channel, method, b"\xff", headers=(bearer(allowed_token(attacked.keys, method)),))
    await attacked.settled()
    assert attacked.spans.get_finished_spans() == ()
    [wait] = [method for name, method in waiting.items() if name.endswith(".WaitSession")]
    run = bearer(token_of(attacked.keys, CallerKind.RUN))
    await refused(channel, wait, b"\xff", headers=(run, traceparent("01")))
    assert (await only_span(attacked)).context.trace_id == TRACE_ID
