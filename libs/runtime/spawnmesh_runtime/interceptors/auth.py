"""Finds out who calls, and whether the contract lets them."""

from collections.abc import Mapping

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import Call, ServedMethod, Step
from spawnmesh_runtime.caller import CallerKind, enter_call_of
from spawnmesh_runtime.tokens import TokenVerifier


def authenticated_calls(inner: Step, method: ServedMethod, verifier: TokenVerifier) -> Step:
    """Sets `current_caller()` for the rest of the call."""
    policy = method.policy

    async def step(call: Call) -> object:
        caller = await verifier.authenticate(_bearer(call.metadata))
        call.caller = caller
        enter_call_of(caller)
        if caller.kind not in policy.callers or (
            caller.kind is CallerKind.SERVICE and caller.service not in policy.services
        ):
            raise MeshError(
                Reason.CALLER_NOT_ALLOWED,
                "this kind of caller may not call this RPC",
                facts={"caller": caller.kind.value, "method": f"{method.service}/{method.name}"},
            )
        return await inner(call)

    return step


def _bearer(metadata: Mapping[str, str | bytes]) -> str:
    scheme, _, token = str(metadata.get("authorization", "")).partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise MeshError(Reason.TOKEN_MISSING, "the call carries no bearer token in its metadata")
    return token.strip()
