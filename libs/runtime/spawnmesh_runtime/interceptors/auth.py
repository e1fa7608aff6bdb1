"""Authenticate the caller by the headers, before any message is read, and check that the contract
allows it to call the RPC.
"""

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import inf

from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import Call, ServedMethod, Step
from spawnmesh_runtime.caller import Caller, CallerKind, ClientRole, set_caller
from spawnmesh_runtime.methods import CallPolicy
from spawnmesh_runtime.revoked_tokens import RevokedTokens
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


def authorized_calls(
    inner: Step, method: ServedMethod, revoked: RevokedTokens, *, is_stream: bool = False
) -> Step:
    """Refuse callers that are not authenticated, whose token is revoked, or that the contract does
    not allow. A call whose messages stream in either direction ends when its token is revoked.
    """
    policy = method.policy
    callers, services, role = policy.callers, policy.services, policy.role

    async def step(call: Call) -> object:
        caller = call.caller
        if caller is None:
            error, call.anonymity = call.anonymity, None
            raise error or MeshError(Reason.TOKEN_MISSING, "the call is not authenticated")
        if is_revoked(caller, policy, revoked):
            raise _token_revoked()
        kind = caller.kind
        if kind not in callers or (kind is CallerKind.SERVICE and caller.service not in services):
            if not _acts_as_admin(caller, policy):
                raise _not_allowed(caller, method)
            tenant_id = caller.tenant_id
            caller = replace(caller, kind=CallerKind.ADMIN, tenant_id="", client_tenant_id=tenant_id)
            call.caller = caller
            set_caller(caller)
        elif kind is CallerKind.CLIENT and caller.role < role:
            raise _role_missing(caller, role)
        elif kind is CallerKind.SERVICE and policy.without_tenant is bool(caller.tenant_id):
            raise MeshError(Reason.CALLER_NOT_ALLOWED, "the token of the service is for other RPCs")
        if policy.ends_with_token or (is_stream and not _is_left_to_rpc(caller, policy)):
            left = caller.expire_timestamp - utc_now().timestamp() if policy.ends_with_token else inf
            return await _until_token_ends(inner, call, caller, revoked, left)
        return await inner(call)

    return step


def _not_allowed(caller: Caller, method: ServedMethod) -> MeshError:
    policy, kind = method.policy, caller.kind
    caller_text = f"the service {caller.service}" if kind is CallerKind.SERVICE else f"a token of kind {kind}"
    kinds = sorted(policy.callers - {CallerKind.SERVICE})
    allowed = ", ".join([*kinds, *(f"service {name}" for name in sorted(policy.services))])
    return MeshError(
        Reason.CALLER_NOT_ALLOWED,
        f"{caller_text} may not call {method.name}, which is for {allowed or 'no caller'}",
        facts={"caller": kind.value, "method": f"{method.service}/{method.name}"},
    )


def is_revoked(caller: Caller, policy: CallPolicy, revoked: RevokedTokens) -> bool:
    """Return whether the call is refused because the token was revoked, because its run ended, or
    because the token that the run was claimed with was revoked.

    Some RPCs find out by themselves whether a run has ended.
    """
    if any(key in revoked for key in caller.further_keys):
        return True
    return caller.revocation_key in revoked and not _is_left_to_rpc(caller, policy)


def _is_left_to_rpc(caller: Caller, policy: CallPolicy) -> bool:
    """Return whether the RPC finds out by itself whether the run has ended."""
    return policy.checks_run and caller.kind is CallerKind.RUN


def _acts_as_admin(caller: Caller, policy: CallPolicy) -> bool:
    """Return whether the client of a tenant may call an RPC for operators of the mesh, as one.

    Where clients may call as well, it stays a client of its tenant.
    """
    return (
        caller.kind is CallerKind.CLIENT
        and caller.role is ClientRole.ADMIN
        and CallerKind.ADMIN in policy.callers
        and CallerKind.CLIENT not in policy.callers
    )


def _role_missing(caller: Caller, needed: ClientRole) -> MeshError:
    needed_name = needed.name.lower()
    return MeshError(
        Reason.ROLE_MISSING,
        f"this RPC needs the role {needed_name}, which the token does not have",
        facts={"role_needed": needed_name, "roles_held": caller.role.included},
    )


def _token_revoked() -> MeshError:
    return MeshError(
        Reason.TOKEN_REVOKED,
        "the token was revoked, or its run has ended, or the token that the run was claimed with was"
        " revoked; it opens nothing any more",
    )


async def _until_token_ends(
    inner: Step, call: Call, caller: Caller, revoked: RevokedTokens, left_seconds: float
) -> object:
    """Run the call until its token is revoked, or until the time that is left to it is over: later
    messages must not reach the holder of the token, nor come from it.
    """
    keys = (caller.revocation_key, *caller.further_keys)
    try:
        async with asyncio.timeout(min(left_seconds, _LONGEST_SECONDS)) as bound:
            with ExitStack() as watched:
                for key in keys:
                    watched.enter_context(revoked.ending(key, partial(_end_now, bound)))
                return await inner(call)
    except TimeoutError:
        if not bound.expired():
            raise
        if any(key in revoked for key in keys):
            raise _token_revoked() from None
        raise MeshError(
            Reason.TOKEN_EXPIRED, "the token expired while the stream was open; call again with a new one"
        ) from None


def _bearer(call: Call) -> str:
    headers = call.headers("authorization")
    if len(headers) > 1:  # Each reader of the call could believe another one.
        raise MeshError(Reason.TOKEN_INVALID, "the call has more than one authorization header; send one")
    scheme, _, token = (headers[0] if headers else "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise MeshError(Reason.TOKEN_MISSING, "the call has no bearer token in its metadata")
    return token.strip()


def _end_now(bound: asyncio.Timeout) -> None:
    """End the block, unless it is ending already."""
    if not bound.expired():
        bound.reschedule(0.0)
