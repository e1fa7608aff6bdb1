"""Authenticate the caller and check that the contract allows it to call the RPC."""

import asyncio
from collections.abc import Mapping

from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import Call, ServedMethod, Step
from spawnmesh_runtime.caller import Caller, CallerKind, set_caller
from spawnmesh_runtime.tokens import TokenVerifier

# Longer than any connection. A timer does not accept every number.
_LONGEST_SECONDS = 365 * 86_400.0


def authenticated_calls(inner: Step, method: ServedMethod, verifier: TokenVerifier) -> Step:
    """Authenticate each call and set `current_caller()` for the rest of it."""
    policy = method.policy

    async def step(call: Call) -> object:
        caller = await verifier.authenticate(_bearer(call.metadata))
        call.caller = caller
        set_caller(caller)
        if caller.kind not in policy.callers or (
            caller.kind is CallerKind.SERVICE and caller.service not in policy.services
        ):
            raise MeshError(
                Reason.CALLER_NOT_ALLOWED,
                "this kind of caller may not call this RPC",
                facts={"caller": caller.kind.value, "method": f"{method.service}/{method.name}"},
            )
        return await (_until_token_expires(inner, call, caller) if policy.ends_with_token else inner(call))

    return step


async def _until_token_expires(inner: Step, call: Call, caller: Caller) -> object:
    """Run the call until its token expires: later messages must not reach the holder of
    the token.
    """
    try:
        left = min(caller.expire_timestamp - utc_now().timestamp(), _LONGEST_SECONDS)
        async with asyncio.timeout(left) as bound:
            return await inner(call)
    except TimeoutError:
        if not bound.expired():
            raise
        raise MeshError(
            Reason.TOKEN_EXPIRED, "the token expired while the stream was open; call again with a new one"
        ) from None


def _bearer(metadata: Mapping[str, str | bytes]) -> str:
    scheme, _, token = str(metadata.get("authorization", "")).partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise MeshError(Reason.TOKEN_MISSING, "the call carries no bearer token in its metadata")
    return token.strip()
