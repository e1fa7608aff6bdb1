"""What a database failure means to the caller."""

import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason

_LOST_A_RACE = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)
_NOT_THERE = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.TooManyConnections,
    errors.DiskFull,
    errors.QueryCanceled,
    errors.IdleInTransactionSessionTimeout,
    errors.TransactionTimeout,
)
_NOT_IN_ENCODING = errors.CharacterNotInRepertoire.sqlstate


def translate(error: BaseException) -> MeshError | None:
    """The refusal that a psycopg failure stands for, by its class and SQLSTATE; None for one that is a defect of ours.

    Whether a transaction committed is unknown after a lost connection: callers repeat under their request_id or idempotency key.
    """
    if isinstance(error, PoolTimeout):
        return MeshError(
            Reason.POOL_EXHAUSTED, "every database connection is in use; call again later", retry_after_seconds=1.0
        )
    if isinstance(error, PoolClosed):
        return MeshError(Reason.DRAINING, "the process is shutting down; call another replica", retry_after_seconds=1.0)
    if isinstance(error, _LOST_A_RACE):
        return MeshError(
            Reason.CONFLICT, "the transaction lost against another one; call again", retry_after_seconds=0.05
        )
    if isinstance(error, errors.FeatureNotSupported) and "cached plan" in str(error):
        return MeshError(Reason.CONFLICT, "the schema has just been migrated; call again", retry_after_seconds=0.05)
    if isinstance(error, _NOT_THERE):
        return unavailable("PostgreSQL")
    if isinstance(error, errors.ReadOnlySqlTransaction):  # A standby, or a primary that takes no writes for a while.
        return MeshError(
            Reason.DEPENDENCY_UNAVAILABLE,
            "PostgreSQL takes no writes at the moment; call again later",
            retry_after_seconds=1.0,
            facts={"dependency": "PostgreSQL"},
        )
    if isinstance(error, psycopg.DataError) and error.sqlstate in (
        None,
        _NOT_IN_ENCODING,
    ):  # NUL, which no text column takes.
        return MeshError(
            Reason.INVALID_REQUEST, "a text of the request contains a character that cannot be stored (NUL)"
        )
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:  # No server answered, or it went away.
        return unavailable("PostgreSQL")
    return None
