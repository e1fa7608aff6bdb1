"""WatchRevokedTokens. Streams the revoked tokens of all tenants, and new ones as they commit."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh.session.v1 import token_service_pb2 as pb
from spawnmesh_calls.wire_times import timestamp_of

from spawnmesh_session.rpc.dependencies import Dependencies


async def watch_revoked_tokens(
    request: pb.WatchRevokedTokensRequest, deps: Dependencies
) -> AsyncGenerator[pb.WatchRevokedTokensResponse, None]:
    """Yield pages of tokens; a page without tokens says that there are none."""
    async with aclosing(deps.revocations.tokens_after(request.after_change)) as pages:
        async for tokens, position in pages:
            yield pb.WatchRevokedTokensResponse(
                tokens=[
                    pb.RevokedToken(
                        tenant_id=token.tenant_id,
                        token_id=token.token_id,
                        expire_time=timestamp_of(token.expire_time),
                        is_run=token.is_run,
                    )
                    for token in tokens
                ],
                change=position,
            )
