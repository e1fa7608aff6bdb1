"""Area `attachments_name`: `given.name` is the name of one small file under the default limits."""

from spawnmesh_attachment_blob.domain import AttachmentLimits

from spawnmesh_devstack.conformance.attachments import Item, judge
from spawnmesh_devstack.conformance.cases import REMARKS, Case, CaseResult, object_of, text_of
from spawnmesh_devstack.conformance.compare import difference
from spawnmesh_devstack.conformance.mesh import MeshAccess


async def replay(mesh: MeshAccess, case: Case) -> CaseResult:
    """Expect `reason`, or `accepted`. An accepted name must come back unchanged."""
    given = object_of(case.given, "given", {"name", *REMARKS})
    name = text_of(given.get("name"), "name")
    judged = await judge(mesh, [Item(name, "x", "utf8")], AttachmentLimits())
    problem = difference(case.expect, judged.outcome)
    if not problem and judged.outcome["accepted"]:
        problem = difference({"files": [{"name": name}]}, judged.outcome)
    return CaseResult(problem, judged.without_service)
