"""No id of another tenant opens anything: every field of every RPC that takes an id is given one.

The fields come from the descriptors. A new RPC or field is attacked because it is in the contracts.
"""

from collections.abc import Iterator

from google.protobuf.message import Message
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of

from tests.security.mesh.conftest import Attacked
from tests.support.security.every_rpc import Answer, Served, ask
from tests.support.security.forms import form_of, id_fields, with_id
from tests.support.security.tenants import Filled, settled_rows, stored_rows

REFUSALS = {"NOT_FOUND", "PERMISSION_DENIED", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "ABORTED"}
ENDS_SOMETHING = (
    "Acknowledge", "Archive", "Close", "Delete", "Discard", "Fail", "Finalize", "Kill", "Purge", "Release", "Remove"
)  # fmt: skip
"""The beginnings of RPCs that come last: the others need what these end."""
