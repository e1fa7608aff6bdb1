"""May this draft be the final answer? Asks the tenant's plugins for BEFORE_AGENT_FINALIZE, once for each draft."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

import structlog
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener

from spawnmesh_hook import decision_store, questions
from spawnmesh_hook.answers import Failure
from spawnmesh_hook.apart import apart
from spawnmesh_hook.budget import Budget
from spawnmesh_hook.decision_store import ASKING_ENDED_CHANNEL, DraftKey
from spawnmesh_hook.directory import PluginDirectory
from spawnmesh_hook.domain.decisions import Decision, FinalizeAnswer, Verdict, ends_asking, grant, merge
from spawnmesh_hook.domain.plugins import FailurePolicy, HookKind, Plugin
from spawnmesh_hook.errors import AskingInProgress, PluginFailed
from spawnmesh_hook.parse import parse_verdict
from spawnmesh_hook.plugin_calls import PluginCalls

# Beyond what the plugins may take, so that a slow commit is not taken for a dead process.
_TAKEN_OVER_AFTER = timedelta(seconds=5)
# A notification can be lost with its connection, and a dead asker sends none.
_LOOK_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Asking:
    """The claim of this call on asking the plugins, which no transaction holds while they are asked."""

    draft: DraftKey
    asker: UUID
    plugins: Sequence[Plugin]
    revision_count: int


class FinalizeGate:
    """One decision for each draft, whoever asks and however often."""

    def __init__(self, database: Database, listener: Listener, directory: PluginDirectory, calls: PluginCalls) -> None:
        self._database = database
        self._listener = listener
        self._directory = directory
        self._calls = calls

    async def judge(
        self, tenant_id: str, event: BeforeAgentFinalizeEvent, dispatch_key: str, budget: Budget
    ) -> Decision:
        """The decision that is kept for the draft, or else a new one by the plugins; where there are neither, continue, and nothing is kept.

        While another call asks them, waits for what comes of it. Raises PluginFailed, with nothing kept, and AskingInProgress when the budget
        ends before the other call does.
        """
        draft = DraftKey(tenant_id, event.run_id, dispatch_key)
        plugins = await self._directory.active(tenant_id, HookKind.BEFORE_AGENT_FINALIZE)
        if not plugins and not await self._is_asked(draft):
            return grant(merge([]), None)
        with self._listener.subscription(ASKING_ENDED_CHANNEL, draft.topic) as ended:
            while True:
                begun = await self._begin(draft, plugins, budget)
                if isinstance(begun, Decision):
                    return begun
                if begun is not None:
                    decision = await self._ask_and_decide(begun, event, budget)
                    if decision is not None:
                        return decision
                elif budget.left() <= 0:
                    raise AskingInProgress
                else:
                    await ended.wait(min(_LOOK_AGAIN_SECONDS, budget.left()))

    async def _is_asked(self, draft: DraftKey) -> bool:
        """Whether plugins that are gone or paused by now were asked about the draft. Costs nothing where the tenant's plugins never decided."""
        if not await self._directory.has_decisions(draft.tenant_id):
            return False
        async with self._database.transaction(draft.tenant_id) as connection:
            return await decision_store.is_asked(connection, draft)

    async def _begin(self, draft: DraftKey, plugins: Sequence[Plugin], budget: Budget) -> _Asking | Decision | None:
        """What this call is to ask, or the decision where nobody has to be asked; None while another call is asking."""
        asker = uuid4()
        longest = sum((plugin.timeout for plugin in plugins), timedelta())  # Each waits for its slot in its own time.
        asking_for = min(longest, timedelta(seconds=budget.left())) + _TAKEN_OVER_AFTER
        async with self._database.transaction(draft.tenant_id) as connection:
            if not await decision_store.claim_asking(connection, draft, asker, asking_for):
                return await decision_store.get_decision(connection, draft)
            revision_count = await decision_store.get_revision_count(connection, draft)
        return _Asking(draft, asker, plugins, revision_count)

    async def _ask_and_decide(
        self, asking: _Asking, event: BeforeAgentFinalizeEvent, budget: Budget
    ) -> Decision | None:
        """The decision, kept; None when this call took so long that another one has taken over."""
        try:
            verdicts = await self._ask(asking, event, budget)
            return await self._decide(asking, verdicts, may_revise=not event.has_final_effects)
        except BaseException:
            await asyncio.shield(self._give_up(asking))
            raise

    async def _ask(self, asking: _Asking, event: BeforeAgentFinalizeEvent, budget: Budget) -> list[Verdict]:
        verdicts: list[Verdict] = []
        tenant_id = asking.draft.tenant_id
        for viewer in await self._directory.viewers(tenant_id, HookKind.BEFORE_AGENT_FINALIZE, asking.plugins):
            plugin = viewer.plugin
            question = await apart(
                event.ByteSize(), questions.before_agent_finalize, viewer, event, asking.revision_count
            )
            answer = await self._calls.ask(tenant_id, plugin, question, budget)
            if not isinstance(answer, Failure):
                verdicts.append(parse_verdict(plugin.name, answer.decision))
                if ends_asking(verdicts[-1]):
                    break
            elif plugin.failure_policy is FailurePolicy.CLOSED:
                raise PluginFailed(plugin.name, HookKind.BEFORE_AGENT_FINALIZE, answer.error)
        return verdicts

    async def _decide(self, asking: _Asking, verdicts: Sequence[Verdict], *, may_revise: bool) -> Decision | None:
        draft = asking.draft
        async with self._database.transaction(draft.tenant_id) as connection:
            if not await decision_store.lock_asking(connection, draft, asking.asker):
                return None
            merged = merge(verdicts, await decision_store.spent_keys(connection, draft, verdicts))
            number = None
            if merged.answer is FinalizeAnswer.REVISE and may_revise:
                number = await decision_store.count_revision(connection, draft)
            if number is not None:
                await decision_store.count_keys(connection, draft, merged.revises)
            decision = grant(merged, number)
            await decision_store.decide(connection, draft, asking.asker, decision)
            await decision_store.announce_asking_ended(connection, draft)
        if decision.capped:
            structlog.get_logger().warning("revision_capped", run=draft.run_id, plugins=merged.decided_by)
        return decision

    async def _give_up(self, asking: _Asking) -> None:
        async with self._database.transaction(asking.draft.tenant_id) as connection:
            await decision_store.give_up_asking(connection, asking.draft, asking.asker)
            await decision_store.announce_asking_ended(connection, asking.draft)
