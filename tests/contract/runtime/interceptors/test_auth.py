"""Callers are admitted or refused by their tokens."""

from datetime import UTC, datetime, timedelta
from typing import Any

import grpc.aio
import pytest
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller, CallerKind, current_caller
from spawnmesh_runtime.impersonation import impersonate, use_token


async def refusal(ask: Any, target: str, token: str | None, **options: Any) -> tuple[str, MeshError]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(target, token, **options)
    return caught.value.code().name, error_from("plugin", caught.value)


async def test_call_without_a_token_is_refused(serve: Any, ask: Any) -> None:
    served = await serve()
    code, error = await refusal(ask, served.target, None)
    assert (code, error.reason) == ("UNAUTHENTICATED", Reason.TOKEN_MISSING)
    assert error.domain == "transcript.spawnmesh"
    assert served.plugin.seen == []


@pytest.mark.parametrize("header", ["Basic abc", "Bearer", "Bearer  "])
async def test_other_credentials_are_no_bearer_token(serve: Any, ask: Any, header: str) -> None:
    served = await serve()
    code, error = await refusal(ask, served.target, None, metadata=(("authorization", header),))
    assert (code, error.reason) == ("UNAUTHENTICATED", Reason.TOKEN_MISSING)


async def test_expired_token_is_refused(serve: Any, ask: Any, keys: Any) -> None:
    served = await serve()
    past = keys.minter("hook", clock=lambda: datetime.now(UTC) - timedelta(minutes=6))
    code, error = await refusal(ask, served.target, past.service_token("acme"))
    assert (code, error.reason) == ("UNAUTHENTICATED", Reason.TOKEN_EXPIRED)


async def test_unusable_tokens_are_refused_without_being_repeated(serve: Any, ask: Any, keys: Any) -> None:
    served = await serve()
    tokens = {
        "another audience": keys.minter("hook", audience="elsewhere").service_token("acme"),
        "key that is not known": keys.minter("unknown").service_token("acme"),
        "its issuer may not issue": keys.minter("stranger").service_token("acme"),
        "not a signed JWT": "rubbish",
    }
    for why, token in tokens.items():
        code, error = await refusal(ask, served.target, token)
        assert (code, error.reason) == ("UNAUTHENTICATED", Reason.TOKEN_INVALID)
        assert why in error.message
        assert token not in error.message
    assert served.plugin.seen == []


@pytest.mark.parametrize(
    ("issuer", "kind"), [("client", "client"), ("client", "admin"), ("session", "run"), ("runner", "runner")]
)
async def test_kind_of_caller_outside_the_policy_is_not_allowed(
    serve: Any, ask: Any, keys: Any, issuer: str, kind: str
) -> None:
    served = await serve()
    minter = keys.minter(issuer)
    token = {
        "client": lambda: minter.client_token("acme", "ann", 60),
        "admin": lambda: minter.admin_token("root", 60),
        "run": lambda: minter.run_token("acme", "ses_1", "run_1", 3, 60),
        "runner": minter.runner_token,
    }[kind]()
    code, error = await refusal(ask, served.target, token)
    assert (code, error.reason) == ("PERMISSION_DENIED", Reason.CALLER_NOT_ALLOWED)
    assert error.facts["caller"] == kind
    assert error.message.startswith(f"a token of kind {kind} may not call ")
    assert ", which is for service " in error.message
    assert served.plugin.seen == []


async def test_service_outside_the_policy_is_not_allowed(serve: Any, ask: Any, keys: Any) -> None:
    served = await serve()
    code, error = await refusal(ask, served.target, keys.minter("session").service_token("acme"))
    assert (code, error.reason) == ("PERMISSION_DENIED", Reason.CALLER_NOT_ALLOWED)


async def test_servicer_sees_the_verified_caller(serve: Any, ask: Any, keys: Any) -> None:
    callers: list[Caller] = []

    async def behavior(request: Any, context: Any) -> Any:
        callers.append(current_caller())
        raise MeshError(Reason.NOT_FOUND, "enough")

    served = await serve(behavior)
    await refusal(ask, served.target, keys.minter("hook").service_token("acme"))
    assert callers == [Caller(CallerKind.SERVICE, "hook", "acme", service="hook")]
    with pytest.raises(LookupError):
        current_caller()


async def test_call_made_while_serving_acts_for_the_callers_tenant(
    serve: Any, peer_of: Any, request_with: Any
) -> None:
    tenants: list[str] = []

    async def behavior(request: Any, context: Any) -> Any:
        tenants.append(current_caller().tenant_id)
        raise MeshError(Reason.NOT_FOUND, "enough")

    inner = await serve(behavior)
    async with peer_of(inner.target) as further:

        async def passes_on(request: Any, context: Any) -> Any:
            return await further.unary(
                pb_grpc.HookHandlerServiceStub(further.channel).HandleBeforeSpawn, request, timeout_seconds=60
            )

        outer = await serve(passes_on, service="hook")
        async with peer_of(outer.target) as peer:
            method = pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn
            with impersonate("acme"), pytest.raises(MeshError) as caught:
                await peer.unary(method, request_with(), timeout_seconds=60)
    assert tenants == ["acme"]
    assert caught.value.domain == "transcript.spawnmesh"


async def test_innermost_block_decides_in_whose_name_a_call_is_made(
    serve: Any, peer_of: Any, keys: Any, request_with: Any
) -> None:
    served = await serve()
    async with peer_of(served.target) as peer:
        method = pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn
        with use_token(keys.minter("runner").runner_token()):
            with pytest.raises(MeshError) as caught:
                await peer.unary(method, request_with(), timeout_seconds=60)
            with impersonate("acme"):
                await peer.unary(method, request_with(), timeout_seconds=60)
        with pytest.raises(RuntimeError, match="tenant"):
            await peer.unary(method, request_with(), timeout_seconds=60)
    assert caught.value.facts["caller"] == "runner"
