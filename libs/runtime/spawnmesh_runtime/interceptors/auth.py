"""Authenticate the caller by the headers, before any message is read, and check that the contract
allows it to call the RPC.
"""

import asyncio

from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import Call, ServedMethod, Step
from spawnmesh_runtime.caller import Caller, CallerKind, set_caller
from spawnmesh_runtime.tokens import TokenVerifier

# Longer than any connection. A timer does not accept every number.
_LONGEST_SECONDS = 365 * 86_400.0


def authenticated_calls(inner: Step, verifier: TokenVerifier) -> Step:
    """Authenticate each call and set `current_caller()` for the rest of it.

    The span depends on the caller, so this is outside of the trace interceptor. A call without a
    valid token goes on, for its span and its log event, until `authorized_calls` refuses it.
    """

    async def step(call: Call) -> object:
        try:
            call.caller = await verifier.authenticate(_bearer(call))
            set_caller(call.caller)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is raised later
            call.anonymity = error
        return await inner(call)

    return step


def authorized_calls(inner: Step, method: ServedMethod) -> Step:
    """Refuse callers that are not authenticated, or that the contract does not allow."""
    policy = method.policy

    async def step(call: Call) -> object:
        caller = call.caller
        if caller is None:
            error, call.anonymity = call.anonymity, None
            raise error or MeshError(Reason.TOKEN_MISSING, "the call is not authenticated")
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


def _bearer(call: Call) -> str:
    headers = call.headers("authorization")
    if len(headers) > 1:  # Each reader of the call could believe another one.
        raise MeshError(Reason.TOKEN_INVALID, "the call carries more than one authorization header; send one")
    scheme, _, token = (headers[0] if headers else "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise MeshError(Reason.TOKEN_MISSING, "the call carries no bearer token in its metadata")
    return token.strip()
