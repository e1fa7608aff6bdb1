"""Revisions that plugins request and that are not granted."""

from typing import Any

import pytest
from spawnmesh.hook.v1.revision_pb2 import (
    REVISION_CAP_FINAL_EFFECTS,
    REVISION_CAP_LAST_TURN,
    REVISION_CAP_OBJECTION_KEY,
    CappedRevision,
)

from tests.support.hook.fixtures import FINALIZE, HookMesh, Tenant
from tests.support.hook.scripted_plugin import CONTINUE, finalize, revise


@pytest.mark.parametrize(
    ("facts", "cap"),
    [
        ({"is_last_turn": True}, REVISION_CAP_LAST_TURN),
        ({"has_final_effects": True}, REVISION_CAP_FINAL_EFFECTS),
    ],
    ids=["last turn", "final effects"],
)
async def test_DispatchBeforeAgentFinalize__a_draft_that_cannot_be_revised_counts_no_revision(
    mesh: HookMesh, tenant: Tenant, facts: dict[str, bool], cap: Any
) -> None:
    keyed = revise("again")
    keyed.revise.objection_key = "k"
    for name, answer in (("keyed", keyed), ("plain", revise("no"))):
        await tenant.register(name, (await mesh.plugin(answer)).endpoint, FINALIZE)
    assert (await tenant.draft("k1")).revision_number == 1
    capped = await tenant.draft("k2", **facts)
    assert list(capped.capped_revisions) == [
        CappedRevision(plugin="keyed", cap=REVISION_CAP_OBJECTION_KEY),
        CappedRevision(plugin="plain", cap=cap),
    ]
    assert (capped.decision, list(capped.decided_by)) == (CONTINUE, [])
    assert (await tenant.draft("k3")).revision_number == 2
    assert await tenant.on(await mesh.replica()).draft("k2", **facts) == capped
    assert len(await tenant.deliveries(decision="capped")) == 2


async def test_DispatchBeforeAgentFinalize__a_lower_finalize_says_what_was_not_granted_above(
    mesh: HookMesh, tenant: Tenant
) -> None:
    keyed = revise("again")
    keyed.revise.objection_key = "k"
    await tenant.register("keyed", (await mesh.plugin(keyed)).endpoint, FINALIZE)
    assert (await tenant.draft("k1")).revision_number == 1
    await tenant.register("final", (await mesh.plugin(finalize("done"))).endpoint, FINALIZE)
    answer = await tenant.draft("k2")
    assert (answer.decision, list(answer.decided_by)) == (finalize("done"), ["final"])
    assert list(answer.capped_revisions) == [CappedRevision(plugin="keyed", cap=REVISION_CAP_OBJECTION_KEY)]
