"""Area `attachments_name`: `given.name` as the name of one small file under the default limits."""

from spawnmesh_attachment_blob.domain import AttachmentLimits

from spawnmesh_devstack.conformance.attachments import Item, judge
from spawnmesh_devstack.conformance.cases import REMARKS, Case, Verdict, object_of, text_of
from spawnmesh_devstack.conformance.compare import difference
from spawnmesh_devstack.conformance.mesh import ReachedMesh


async def replay(mesh: ReachedMesh, case: Case) -> Verdict:
    """Expects `reason`, or `accepted`; a name that is accepted comes back as it was given."""
    given = object_of(case.given, "given", {"name", *REMARKS})
    name = text_of(given.get("name"), "name")
    judged = await judge(mesh, [Item(name, "x", "utf8")], AttachmentLimits())
    problem = difference(case.expect, judged.outcome)
    if not problem and judged.outcome["accepted"]:
        problem = difference({"files": [{"name": name}]}, judged.outcome)
    return Verdict(problem, judged.without_service)
