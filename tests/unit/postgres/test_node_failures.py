"""An error of Citus about a lost node is a refusal to repeat, like a lost server."""

import psycopg
import pytest
from psycopg import errors
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.errors import translate

LOST = "failure on connection marked as essential: node:5432"


@pytest.mark.parametrize(
    "error",
    [
        errors.ConnectionFailure("connection to the remote node failed"),
        errors.ConnectionDoesNotExist("gone"),
        psycopg.OperationalError("connection refused"),
        errors.InternalError_(LOST),
    ],
)
def test_lost_node_is_unavailable(error: psycopg.Error) -> None:
    refusal = translate(error)
    assert refusal is not None
    assert refusal.reason is Reason.DEPENDENCY_UNAVAILABLE


@pytest.mark.parametrize(
    "error",
    [
        errors.InternalError_("another one"),
        errors.DataCorrupted("disk"),
        errors.StatementTooComplex("stack"),
        errors.SyntaxError(LOST),
    ],
)
def test_defect_is_not_explained_away(error: psycopg.Error) -> None:
    assert translate(error) is None
