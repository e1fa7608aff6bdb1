"""What errors are called."""

from spawnmesh_core.errors import MeshError, name_of
from spawnmesh_core.reasons import Reason


def test_a_refusal_is_called_by_its_reason_and_who_is_behind_it() -> None:
    assert name_of(ValueError("secret")) == "ValueError"
    assert name_of(MeshError(Reason.CONFLICT, "told to nobody")) == "CONFLICT"
    assert name_of(MeshError(Reason.TOKEN_INVALID, "told to nobody", domain="hook")) == "TOKEN_INVALID (hook)"
    away = MeshError(Reason.DEPENDENCY_UNAVAILABLE, "away", domain="hook", facts={"dependency": "s3"})
    assert name_of(away) == "DEPENDENCY_UNAVAILABLE (s3)"
