"""Area `finalize_merge`: `given.handlers` judge a draft, and `expect.merged` is the merged
decision.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from spawnmesh_devstack.conformance.cases import REMARKS, Case, CaseResult, object_of
from spawnmesh_devstack.conformance.compare import difference
from spawnmesh_devstack.conformance.hook_cases import HookTenant, handlers_of, open_hook_tenant
from spawnmesh_devstack.conformance.mesh import MeshAccess


async def replay(mesh: MeshAccess, case: Case) -> CaseResult:
    """Expect `merged` as `{"action", "reason", …}`, or as the action alone; null means no
    objection.

    An action is `continue`, `revise`, `finalize`, or `failed` if a CLOSED plugin gave no valid
    answer. `deliveries` can be expected too: the plugins in the order of their calls, each with its
    decision.
    """
    given = object_of(case.given, "given", {"handlers", *REMARKS})
    async with open_hook_tenant(mesh, handlers_of(given.get("handlers"))) as tenant:
        merged = await _merged(tenant)
        deliveries = await tenant.deliveries()
    unseen = set(merged["decided_by"]) - {row["plugin"] for row in deliveries}
    if unseen:
        return CaseResult(
            f"came a decision by plugins that the log does not know: {', '.join(sorted(unseen))}"
        )
    expect = spoken(object_of(case.expect, "expect", {"merged", "deliveries", *REMARKS}))
    return CaseResult(difference(expect, {"merged": one_line(merged), "deliveries": deliveries}))


async def _merged(tenant: HookTenant) -> dict[str, Any]:
    event = BeforeAgentFinalizeEvent(
        session_id=new_id(IdKind.SESSION), run_id=new_id(IdKind.RUN), draft_text="A draft."
    )
    request = pb.DispatchBeforeAgentFinalizeRequest(event=event, request_id=uuid.uuid4().hex)
    try:
        answer: pb.DispatchBeforeAgentFinalizeResponse = await tenant.as_session(
            "DispatchBeforeAgentFinalize", request
        )
    except MeshError as error:
        if error.reason is not Reason.PLUGIN_FAILED:
            raise
        return {
            "action": "failed",
            "reason": error.reason.value,
            "decided_by": [error.facts.get("plugin", "")],
        }
    action = answer.decision.WhichOneof("decision") or ""
    reason = {"revise": answer.decision.revise.reason, "finalize": answer.decision.finalize.reason}.get(
        action, ""
    )
    return {
        "action": action,
        "reason": reason,
        "decided_by": list(answer.decided_by),
        "capped": bool(answer.capped_revisions),
    }


def spoken(expect: Mapping[str, Any]) -> dict[str, Any]:
    """Return the expectation with its short forms written out, and without remarks."""
    kept = {name: value for name, value in expect.items() if name not in REMARKS}
    if "merged" in kept:
        merged = kept["merged"]
        if merged is None:
            merged = {"action": "continue"}
        elif isinstance(merged, str):
            merged = {"action": merged}
        kept["merged"] = one_line(merged)
    return kept


def one_line(merged: Any) -> Any:
    """Return the decision with single blanks in its reason: each implementation joins reasons in
    its own way.
    """
    if isinstance(merged, dict) and isinstance(merged.get("reason"), str):
        return {**merged, "reason": " ".join(merged["reason"].split())}
    return merged
