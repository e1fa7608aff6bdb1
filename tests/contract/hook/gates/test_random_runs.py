"""Runs whose plugins answer and fail at random, compared with a model in memory."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.revision_pb2 import REVISION_CAP_OBJECTION_KEY, REVISION_CAP_RUN, CappedRevision
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import CLOSED, DEAD_ENDPOINT, FINALIZE, OPEN, HookMesh, Tenant, hook_replica
from tests.support.hook.scripted_plugin import CONTINUE, finalize, revise

MOST_DRAFTS = 60
NOT_VALID = {"failed", "skipped"}


def keyed(key: str, attempts: int = 0) -> decisions.FinalizeDecision:
    return decisions.FinalizeDecision(
        revise=decisions.Revise(reason=f"because of {key}", objection_key=key, max_attempts=attempts)
    )


ANSWERS = [CONTINUE, revise("r"), keyed("k"), keyed("k", 3), finalize(), finalize("enough"), revise("")]


@dataclass
class Listed:
    """A registered plugin with its last answer."""

    name: str
    priority: int
    policy: "pb.FailurePolicy.ValueType"
    last_answer: Any = None


def by(item: tuple[str, Any]) -> CappedRevision:
    plugin, cap = item
    return CappedRevision(plugin=plugin, cap=cap)


@dataclass
class RunModel:
    """Models the rules for one run."""

    granted: int = 0
    attempts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def answer(
        self, answers: list[tuple[str, decisions.FinalizeDecision]]
    ) -> pb.DispatchBeforeAgentFinalizeResponse:
        """Return the expected decision for these answers, highest priority first."""
        expected = pb.DispatchBeforeAgentFinalizeResponse(decision=CONTINUE, max_revision_count=3)
        revises: list[tuple[str, decisions.Revise]] = []
        capped: dict[str, Any] = {}
        for name, decision in answers:
            if decision.HasField("finalize") and not revises:
                expected.decision.CopyFrom(decision)
                expected.decided_by.append(name)
                expected.capped_revisions.extend(map(by, capped.items()))
                return expected
            if decision.HasField("finalize"):
                break
            if decision.HasField("revise"):
                wanted = decision.revise
                if wanted.objection_key and self.attempts[name, wanted.objection_key] >= (
                    wanted.max_attempts or 1
                ):
                    capped[name] = REVISION_CAP_OBJECTION_KEY
                else:
                    capped[name] = REVISION_CAP_RUN
                    revises.append((name, wanted))
        if not revises or self.granted == 3:
            expected.capped_revisions.extend(map(by, capped.items()))
        else:
            self.granted += 1
            self.attempts.update((name, wanted.objection_key) for name, wanted in revises)
            expected.decision.CopyFrom(revise("\n\n".join(wanted.reason for _, wanted in revises)))
            expected.decided_by.extend(name for name, _ in revises)
            expected.revision_number = self.granted
        return expected


async def listed_at_random(mesh: HookMesh, tenant: Tenant, random: Random) -> list[Listed]:
    """Register plugins of random priorities and policies. Return them in the order of calls."""
    plugins = []
    for number in range(random.randint(1, 4)):
        policy = random.choice([OPEN, CLOSED])
        one = Listed(f"p{number}", random.randint(-1, 1), policy)
        plugins.append(one)

        async def decide(_event: Any, one: Listed = one) -> Any:
            one.last_answer = random.choice(ANSWERS)
            return one.last_answer

        served = await mesh.plugin()
        served.decide = decide
        endpoint = DEAD_ENDPOINT if policy == OPEN and random.random() < 0.15 else served.endpoint
        await tenant.register(one.name, endpoint, FINALIZE, priority=one.priority, policy=policy)
    return sorted(plugins, key=lambda plugin: -plugin.priority)


async def offered(
    tenant: Tenant, run_id: str, key: str, plugins: list[Listed], model: RunModel
) -> pb.DispatchBeforeAgentFinalizeResponse | None:
    """Check the answer to a draft. Return it, or None if a plugin that is CLOSED failed."""
    before = await tenant.deliveries(run_id=run_id, page_size=1000)
    try:
        answer: pb.DispatchBeforeAgentFinalizeResponse | None = await tenant.draft(key, run_id=run_id)
    except MeshError as error:
        if error.reason is not Reason.PLUGIN_FAILED:
            raise
        answer = None
    rows = await tenant.deliveries(run_id=run_id, page_size=1000)
    new = [(row.plugin, decision_of(row)) for row in reversed(rows[: len(rows) - len(before)])]
    called = [(name, decision) for name, decision in new if decision != "capped"]
    capped = [] if answer is None else [revision.plugin for revision in answer.capped_revisions]
    assert sorted(name for name, decision in new if decision == "capped") == sorted(capped)
    assert [name for name, _ in called] == [plugin.name for plugin in plugins[: len(called)]]
    by_name = {plugin.name: plugin for plugin in plugins}
    failed_closed = [
        name for name, decision in called if decision in NOT_VALID and by_name[name].policy == CLOSED
    ]
    assert failed_closed == ([called[-1][0]] if answer is None else [])
    if answer is not None:
        answers = [
            (name, by_name[name].last_answer) for name, decision in called if decision not in NOT_VALID
        ]
        assert len(called) == len(plugins) or answers[-1][1].HasField("finalize")
        assert answer == model.answer(answers)
        assert await tenant.draft(key, run_id=run_id) == answer
    return answer


@pytest.mark.parametrize("seed", range(10))
async def test_every_run_ends_and_no_draft_is_lost(
    mesh: HookMesh, tenant: Tenant, databases: dict[str, ServiceDsn], keys: Path, seed: int
) -> None:
    """The service restarts at random. Each draft gets an answer, the last after three revisions."""
    random = Random(seed)
    plugins = await listed_at_random(mesh, tenant, random)
    models = {f"run_{number}": RunModel() for number in range(3)}
    going, drafts = list(models), 0
    while going:
        drafts += 1
        assert drafts < MOST_DRAFTS * len(models)
        run_id = random.choice(going)
        key = f"draft {models[run_id].granted}"
        if random.random() < 0.2:
            async with hook_replica(databases["hook"], keys) as restarted:
                answer = await offered(tenant.on(restarted), run_id, key, plugins, models[run_id])
        else:
            answer = await offered(tenant, run_id, key, plugins, models[run_id])
        if answer is None:  # As the runner does, repeat the draft once the circuit is closed again.
            for plugin in plugins:
                await tenant.as_client("ResumePlugin", pb.ResumePluginRequest(name=plugin.name))
        elif not answer.decision.HasField("revise"):
            going.remove(run_id)
    assert max(model.granted for model in models.values()) <= 3
