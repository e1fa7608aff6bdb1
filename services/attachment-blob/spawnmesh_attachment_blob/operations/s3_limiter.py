"""Limits the transactions that wait for S3."""

from contextlib import AbstractAsyncContextManager

from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy


class S3TransactionLimiter:
    """Reserves half of the database connections for transactions that do not wait for S3, and a
    quarter of the other half for each tenant's neighbours.

    A slow S3 therefore does not stop calls that need only rows, and one tenant's large files do not
    stop the others' files. Acquire the limiter before a connection, so that a transaction that
    holds locks while it waits for S3 needs nothing more.
    """

    def __init__(self, database_max_connections: int) -> None:
        capacity = max(1, database_max_connections // 2)
        share = max(1, capacity - max(1, capacity // 4))
        self._limiter = FairLimiter(LimiterPolicy("s3_transactions", "", capacity, tenant_capacity=share))

    def acquire(self, tenant_id: str) -> AbstractAsyncContextManager[None]:
        """Hold one permit for the block. Waits for it as long as the caller does."""
        return self._limiter.hold(tenant_id)
