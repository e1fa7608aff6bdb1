"""No id of another tenant opens anything: every field of every RPC that takes an id is given one.

The fields come from the descriptors. A new RPC or field is attacked because it is in the contracts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from google.protobuf.message import Message
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of

from tests.security.mesh.conftest import Attacked
from tests.support.security.every_rpc import Answer, Served, ask
from tests.support.security.forms import IdField, form_of, id_fields, with_id
from tests.support.security.raw_calls import METHODS
from tests.support.security.tenants import Filled, settled_rows

REFUSALS = {"NOT_FOUND", "PERMISSION_DENIED", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "ABORTED"}
