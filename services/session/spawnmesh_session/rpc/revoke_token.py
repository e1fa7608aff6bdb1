"""RevokeToken. Revokes a token of the caller's tenant, or of any for an operator of the mesh."""

from datetime import UTC, datetime

from spawnmesh.session.v1.token_service_pb2 import RevokeTokenRequest, RevokeTokenResponse
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.errors import invalid
from spawnmesh_runtime.caller import Caller, CallerKind, ClientRole

from spawnmesh_session.domain.revocations import MAX_REVOKED_TOKENS, revocations_exceeded
from spawnmesh_session.operations.run_tokens import longest_token_life
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.store import revoked_tokens
from spawnmesh_session.store.revoked_tokens import NO_TENANT


async def revoke_token(
    request: RevokeTokenRequest, caller: Caller, deps: Dependencies
) -> RevokeTokenResponse:
    """Revoke the token until it expires, which is durable on return."""
    tenant_id = _tenant_of(request, caller)
    expire_time = _expiry_of(request)
    async with deps.database.transaction(tenant_id) as connection:
        expiry = await revoked_tokens.revoke_token(
            connection,
            tenant_id,
            request.token_id,
            expire_time,
            # It may be the token of a harness: those of the runs that it claimed can outlive it.
            kept_for=longest_token_life(deps.lease_ttl),
            max_lifetime=deps.max_token_lifetime,
            limit=MAX_REVOKED_TOKENS,
        )
    if expiry is None:
        raise revocations_exceeded()
    return RevokeTokenResponse(expire_time=timestamp_of(expiry))


def _expiry_of(request: RevokeTokenRequest) -> datetime | None:
    if not request.HasField("expire_time"):
        return None
    try:
        return request.expire_time.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise invalid("expire_time", "is not a time") from None


def _tenant_of(request: RevokeTokenRequest, caller: Caller) -> str:
    """Return the tenant of the token. Raise INVALID_REQUEST if a client that is no operator of the
    mesh names another one than its own.
    """
    if caller.kind is CallerKind.ADMIN:
        return request.tenant_id or NO_TENANT
    if caller.role is ClientRole.ADMIN:
        return request.tenant_id or caller.tenant_id
    if request.tenant_id not in ("", caller.tenant_id):
        raise invalid("tenant_id", "is for operators of the mesh; a client revokes tokens of its own tenant")
    return caller.tenant_id
