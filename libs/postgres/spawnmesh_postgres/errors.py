"""Turn the failures of PostgreSQL into refusals."""

import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason

_CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)
_UNAVAILABLE = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.QueryCanceled,
    errors.IdleInTransactionSessionTimeout,
    errors.TransactionTimeout,
)
# A lost connection; a server that has too little memory, disk or connections; a failed disk or
# another error of the server's machine. None of them is a defect of the statement: it succeeds when
# the server is well again or another one has its place. A full disk stays full until an operator
# or a checkpoint makes room, and until then work waits, as it does for a server that is away.
_UNAVAILABLE_CLASSES = ("08", "53", "58")
# So Citus says that a statement failed on a node. A table is missing there if its shard was moved
# after the statement had been planned.
_ON_NODE = "while executing command on"
# Citus reports a node that is lost in a transaction by this text alone, as an internal error.
_NODE_LOST = "failure on connection marked as essential"
_NOT_IN_ENCODING = errors.CharacterNotInRepertoire.sqlstate


def is_outdated_plan(error: BaseException) -> bool:
    """Return whether a migration changed the columns of a prepared statement, which did not run."""
    return isinstance(error, errors.FeatureNotSupported) and "cached plan" in str(error)


def translate(error: BaseException) -> MeshError | None:
    """Return the refusal for a failure of psycopg, by its class and SQLSTATE; None for
    an internal error.

    After a lost connection it is unknown whether the transaction was committed. Callers repeat the
    call with the same request_id.
    """
    if isinstance(error, PoolTimeout):
        return MeshError(
            Reason.POOL_EXHAUSTED,
            "every database connection is in use; call again later",
            retry_after_seconds=1.0,
        )
    if isinstance(error, PoolClosed):
        return MeshError(
            Reason.DRAINING, "the process is shutting down; call another replica", retry_after_seconds=1.0
        )
    if isinstance(error, _CONFLICTS):
        return MeshError(
            Reason.CONFLICT,
            "the transaction conflicts with another one; call again",
            retry_after_seconds=0.05,
        )
    # Clients repeat it by themselves, since it is no conflict: an upgrade fails no call.
    if is_outdated_plan(error):
        return MeshError(
            Reason.DEPENDENCY_UNAVAILABLE,
            "the schema has just been migrated; call again",
            retry_after_seconds=0.05,
            facts={"dependency": "PostgreSQL"},
        )
    if isinstance(error, errors.UndefinedTable) and _ON_NODE in (error.diag.context or ""):
        return MeshError(Reason.CONFLICT, "a shard has just been moved; call again", retry_after_seconds=0.05)
    if isinstance(error, _UNAVAILABLE):
        return unavailable("PostgreSQL")
    # A standby, or a primary that is read-only for a while.
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return MeshError(
            Reason.DEPENDENCY_UNAVAILABLE,
            "PostgreSQL is read-only at the moment; call again later",
            retry_after_seconds=1.0,
            facts={"dependency": "PostgreSQL"},
        )
    # A text column cannot store NUL.
    if isinstance(error, psycopg.DataError) and error.sqlstate in (None, _NOT_IN_ENCODING):
        return MeshError(
            Reason.INVALID_REQUEST, "a text of the request contains a character that cannot be stored (NUL)"
        )
    # Without an SQLSTATE, no server answered. The cause may also be a node of a Citus cluster.
    if isinstance(error, psycopg.OperationalError) and (
        error.sqlstate is None or error.sqlstate.startswith(_UNAVAILABLE_CLASSES)
    ):
        return unavailable("PostgreSQL")
    if isinstance(error, errors.InternalError_) and _NODE_LOST in str(error):
        return unavailable("PostgreSQL")
    return None
