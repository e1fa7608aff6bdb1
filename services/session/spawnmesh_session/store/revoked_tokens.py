"""Tokens that are refused before they expire."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime, timedelta

from spawnmesh_postgres.database import ALL_TENANTS, Connection, Database
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)

CHANNEL = "token_revoked"
"""The channel of PostgreSQL on which each revocation is notified."""

_PAGE = 1000

NO_TENANT = ALL_TENANTS
"""The tenant in the row of a token that has none: no tenant has this id."""


@dataclass(frozen=True, slots=True)
class RevokedToken:
    """The id of a token, or of a run that has ended, whose tokens are refused. `change` orders the
    revocations.
    """

    tenant_id: str
    token_id: str
    expire_time: datetime
    change: int
    is_run: bool = False


async def revoke_token(
    connection: Connection,
    tenant_id: str,
    token_id: str,
    expire_time: datetime | None,
    *,
    kept_for: timedelta,
    max_lifetime: timedelta,
    limit: int,
) -> datetime | None:
    """Revoke the token until it expires, and for `kept_for` after that; return the time until which
    it is refused, which is never in the past.

    Return None if the tenant has reached the limit.
    """
    values = {
        "tenant_id": tenant_id,
        "token_id": token_id,
        "expire_time": expire_time,
        "kept_for": kept_for,
        "max_lifetime": max_lifetime,
        "limit": limit,
    }
    row = await (await connection.execute(_SQL["revoke_token"], values)).fetchone()
    if row is None:
        return None
    await notify_of_revocation(connection)
    expiry: datetime = row["expire_time"]
    return expiry


async def notify_of_revocation(connection: Connection) -> None:
    """Wake the readers of every replica when the transaction commits."""
    await connection.execute(_SQL["notify_of_revocation"])


async def read_revoked_tokens(
    database: Database, change: int
) -> AsyncGenerator[tuple[list[RevokedToken], int], None]:
    """Yield pages of the tokens revoked at this position or later, with the next position.

    A read at the next position misses none, and repeats those of transactions that are open now.
    """
    page = {"change": change, "after_tenant_id": "", "after_token_id": "", "limit": _PAGE}
    positions, rows = await database.transact(
        ALL_TENANTS, (_SQL["read_position"], {}), (_SQL["list_revoked_tokens"], page)
    )
    position = int(positions[0]["position"])
    while True:
        tokens = [RevokedToken(**row) for row in rows]
        yield tokens, position
        if len(rows) < _PAGE:
            return
        last = tokens[-1]
        page |= {
            "change": last.change,
            "after_tenant_id": last.tenant_id,
            "after_token_id": last.token_id,
        }
        (rows,) = await database.transact(ALL_TENANTS, (_SQL["list_revoked_tokens"], page))


async def prune_revoked_tokens(connection: Connection, limit: int) -> int:
    """Delete at most `limit` expired rows, of all tenants; return their number."""
    return (await connection.execute(_SQL["prune_revoked_tokens"], {"limit": limit})).rowcount
