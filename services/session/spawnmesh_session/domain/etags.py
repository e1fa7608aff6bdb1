"""Etags of agents and tenants: a change that is based on an old version is refused."""

import hashlib
import json
from typing import Any

from spawnmesh_core.errors import FieldViolation, MeshError
from spawnmesh_core.reasons import Reason

_ETAG_DIGITS = 32


def etag_of_values(*values: Any) -> str:
    """Return a hash of values that JSON can hold. The order of keys does not matter."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_ETAG_DIGITS]


def etag_differs(field: str, kind: str, resource_id: str, *, etag: str, version: int) -> MeshError:
    """Return the refusal of a change that `field` bases on another version than the current one."""
    return MeshError(
        Reason.ETAG_DIFFERS,
        f"{kind} {resource_id} has changed: it is at version {version} now; get it, apply the change to it,"
        " and call again with its etag",
        violations=(FieldViolation(field, "is the etag of another version"),),
        facts={f"{kind}_id": resource_id, "etag": etag, "version": version},
    )
