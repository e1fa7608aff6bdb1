"""Errors have a label for logs."""

from spawnmesh_core.errors import MeshError, error_label
from spawnmesh_core.reasons import Reason


def test_a_refusal_is_called_by_its_reason_and_who_is_behind_it() -> None:
    assert error_label(ValueError("secret")) == "ValueError"
    assert error_label(MeshError(Reason.CONFLICT, "told to nobody")) == "CONFLICT"
    assert (
        error_label(MeshError(Reason.TOKEN_INVALID, "told to nobody", domain="hook"))
        == "TOKEN_INVALID (hook)"
    )
    away = MeshError(Reason.DEPENDENCY_UNAVAILABLE, "away", domain="hook", facts={"dependency": "s3"})
    assert error_label(away) == "DEPENDENCY_UNAVAILABLE (s3)"
