"""Area `attachments_validate`: `given.attachments` are one set of a tenant that has
`given.limits`.
"""

from typing import Any

from spawnmesh_attachment_blob.domain import AttachmentLimits

from spawnmesh_devstack.conformance.attachments import Item, judge
from spawnmesh_devstack.conformance.cases import (
    REMARKS,
    BadCase,
    Case,
    CaseResult,
    list_of,
    object_of,
    text_of,
)
from spawnmesh_devstack.conformance.compare import difference
from spawnmesh_devstack.conformance.mesh import MeshAccess

_LIMITS = ("enabled", "max_files", "max_file_bytes", "max_total_bytes")
_MAX_INT32, _MAX_INT64 = 2**31 - 1, 2**63 - 1


async def replay(mesh: MeshAccess, case: Case) -> CaseResult:
    """Expect `files` with `name`, `bytes` and `sha256` in order, and `total_bytes`; or `reason`."""
    given = object_of(case.given, "given", {"limits", "attachments", *REMARKS})
    items = [
        _item(item, f"attachments[{place}]") for place, item in enumerate(_list(given.get("attachments")))
    ]
    judged = await judge(mesh, items, _limits(given.get("limits")))
    return CaseResult(difference(case.expect, judged.outcome), judged.without_service)


def _list(value: Any) -> list[Any]:
    return [] if value is None else list_of(value, "attachments")


def _item(value: Any, what: str) -> Item:
    item = object_of(value, what, {"name", "content", "encoding", "mime_type", "mimeType"})
    return Item(
        text_of(item.get("name"), f"{what}.name"),
        text_of(item.get("content"), f"{what}.content"),
        text_of(item.get("encoding"), f"{what}.encoding"),
        text_of(item.get("mime_type", item.get("mimeType")), f"{what}.mime_type"),
    )


def _limits(value: Any) -> AttachmentLimits:
    """Return the limits of the case, with defaults for missing values."""
    given = {} if value is None else object_of(value, "limits", _LIMITS)
    for name, limit in given.items():
        most = _MAX_INT32 if name == "max_files" else _MAX_INT64
        if (
            isinstance(limit, bool) is not (name == "enabled")
            or not isinstance(limit, int)
            or abs(limit) > most
        ):
            raise BadCase(f"limits.{name} is no such limit")
    return AttachmentLimits(**given)
