"""Decides about drafts: calls the plugins for BEFORE_AGENT_FINALIZE, once for each draft."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID, uuid4

import structlog
from spawnmesh.hook.v1.decision_pb2 import FinalizeDecision
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent
from spawnmesh_core.clock import utc_now
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.listener import Listener

from spawnmesh_hook.domain.decisions import (
    CappedRevision,
    Decision,
    FinalizeAnswer,
    MergedDecision,
    PluginDecision,
    RevisionCap,
    decide_draft,
    ends_dispatch,
    merge_decisions,
)
from spawnmesh_hook.domain.deliveries import Delivery, DeliveryDecision
from spawnmesh_hook.domain.errors import DispatchInProgress
from spawnmesh_hook.domain.plugins import HookKind, Plugin
from spawnmesh_hook.operations import request_builders
from spawnmesh_hook.operations.dispatch import Dispatcher
from spawnmesh_hook.operations.plugin_cache import PluginCache
from spawnmesh_hook.operations.time_budget import TimeBudget
from spawnmesh_hook.store import decisions
from spawnmesh_hook.store.decisions import CLAIM_ENDED_CHANNEL, DraftKey
from spawnmesh_hook.store.deliveries import insert_delivery

# Added to the longest time of the plugins, so that a slow commit does not look like a dead process.
_LEASE_MARGIN = timedelta(seconds=5)
# A notification can be lost with its connection, and a process that dies sends none.
_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Claim:
    """The right of this call to call the plugins. No transaction is open meanwhile."""

    draft: DraftKey
    claim_id: UUID
    plugins: Sequence[Plugin]
    revision_count: int


class FinalizeGate:
    """Gives one decision for each draft, even to concurrent and repeated calls."""

    def __init__(
        self, database: Database, listener: Listener, plugin_cache: PluginCache, dispatcher: Dispatcher
    ) -> None:
        self._database = database
        self._listener = listener
        self._plugin_cache = plugin_cache
        self._dispatcher = dispatcher

    async def decide(
        self, tenant_id: str, event: BeforeAgentFinalizeEvent, request_id: str, budget: TimeBudget
    ) -> Decision:
        """Return the stored decision about the draft, or call the plugins and store a new one.

        If there are neither plugins nor a stored decision, return a continue and store nothing.
        While another call has claimed the draft, wait for it. Raises PluginFailed, with nothing
        stored, and DispatchInProgress if the budget ends before the other call does.
        """
        draft = DraftKey(tenant_id, event.run_id, request_id)
        plugins = await self._plugin_cache.active(tenant_id, HookKind.BEFORE_AGENT_FINALIZE)
        if not plugins and not await self._is_claimed_or_decided(draft):
            return decide_draft(merge_decisions([]))
        with self._listener.subscription(CLAIM_ENDED_CHANNEL, draft.topic) as claim_ended:
            while True:
                claim = await self._claim(draft, plugins, budget)
                if isinstance(claim, Decision):
                    return claim
                if claim is not None:
                    decision = await self._dispatch(claim, event, budget)
                    if decision is not None:
                        return decision
                elif budget.left() <= 0:
                    raise DispatchInProgress
                else:
                    await claim_ended.wait(min(_POLL_SECONDS, budget.left()))

    async def _is_claimed_or_decided(self, draft: DraftKey) -> bool:
        """Return whether plugins that are gone or paused by now were called about the draft.

        Reads nothing if the tenant has no decisions at all.
        """
        if not await self._plugin_cache.has_decisions(draft.tenant_id):
            return False
        async with self._database.transaction(draft.tenant_id) as connection:
            return await decisions.is_claimed_or_decided(connection, draft)

    async def _claim(
        self, draft: DraftKey, plugins: Sequence[Plugin], budget: TimeBudget
    ) -> _Claim | Decision | None:
        """Claim the draft, or return its decision, or None while another call has claimed it."""
        claim_id = uuid4()
        # Each plugin waits for its slot within its own timeout.
        longest = sum((plugin.timeout for plugin in plugins), timedelta())
        lease = min(longest, timedelta(seconds=budget.left())) + _LEASE_MARGIN
        async with self._database.adding(draft.tenant_id) as connection:
            if not await decisions.claim_draft(connection, draft, claim_id, lease):
                return await decisions.get_decision(connection, draft)
            revision_count = await decisions.get_revision_count(connection, draft)
        return _Claim(draft, claim_id, plugins, revision_count)

    async def _dispatch(
        self, claim: _Claim, event: BeforeAgentFinalizeEvent, budget: TimeBudget
    ) -> Decision | None:
        """Return the stored decision, or None if another call took the claim over meanwhile."""
        try:
            plugin_decisions = await self._collect_decisions(claim, event, budget)
            return await self._store(claim, event, plugin_decisions)
        except BaseException:
            await asyncio.shield(self._release(claim))
            raise

    async def _collect_decisions(
        self, claim: _Claim, event: BeforeAgentFinalizeEvent, budget: TimeBudget
    ) -> list[PluginDecision]:
        build = partial(request_builders.before_agent_finalize, revision_count=claim.revision_count)
        plugin_decisions: list[PluginDecision] = []
        answers = self._dispatcher.answers(
            claim.draft.tenant_id,
            HookKind.BEFORE_AGENT_FINALIZE,
            budget,
            event,
            build,
            plugins=claim.plugins,
        )
        async with aclosing(answers):
            async for access, answer in answers:
                plugin_decisions.append(_parse_decision(access.plugin.name, answer.decision))
                if ends_dispatch(plugin_decisions[-1]):
                    break
        return plugin_decisions

    async def _store(
        self, claim: _Claim, event: BeforeAgentFinalizeEvent, plugin_decisions: Sequence[PluginDecision]
    ) -> Decision | None:
        draft = claim.draft
        async with self._database.adding(draft.tenant_id) as connection:
            if not await decisions.lock_claim(connection, draft, claim.claim_id):
                return None
            exhausted = await decisions.find_exhausted_keys(connection, draft, plugin_decisions)
            merged = merge_decisions(plugin_decisions, exhausted)
            granted: int | RevisionCap = 0
            if merged.answer is FinalizeAnswer.REVISE:
                granted = _cap_of(event) or await _count_revision(connection, draft, merged)
            decision = decide_draft(merged, granted)
            await decisions.store_decision(connection, draft, claim.claim_id, decision)
            for capped in decision.capped_revisions:
                await insert_delivery(connection, draft.tenant_id, _capped_delivery(event, capped))
            await decisions.notify_claim_ended(connection, draft)
        if decision.capped_revisions:
            plugins = [capped.plugin for capped in decision.capped_revisions]
            structlog.get_logger().warning("revision_capped", run=draft.run_id, plugins=plugins)
        return decision

    async def _release(self, claim: _Claim) -> None:
        async with self._database.transaction(claim.draft.tenant_id) as connection:
            await decisions.release_claim(connection, claim.draft, claim.claim_id)
            await decisions.notify_claim_ended(connection, claim.draft)


def _cap_of(event: BeforeAgentFinalizeEvent) -> RevisionCap | None:
    """Return why the run may have no revision of this draft, whatever it had before."""
    if event.has_final_effects:
        return RevisionCap.FINAL_EFFECTS
    return RevisionCap.LAST_TURN if event.is_last_turn else None


async def _count_revision(
    connection: Connection, draft: DraftKey, merged: MergedDecision
) -> int | RevisionCap:
    """Count the revision and return its number; count nothing if the run has had all of its own."""
    number = await decisions.count_revision(connection, draft)
    if number is None:
        return RevisionCap.RUN
    for revise in merged.revises:
        if revise.objection_key:
            await decisions.count_key_attempt(connection, draft, revise)
    return number


def _capped_delivery(event: BeforeAgentFinalizeEvent, capped: CappedRevision) -> Delivery:
    return Delivery(
        delivery_id=new_id(IdKind.DELIVERY),
        plugin=capped.plugin,
        hook=HookKind.BEFORE_AGENT_FINALIZE,
        session_id=event.session_id,
        run_id=event.run_id,
        start_time=utc_now(),
        latency=timedelta(0),
        decision=DeliveryDecision.CAPPED,
        error=capped.explanation,
        attempt=1,
    )


def _parse_decision(plugin: str, decision: FinalizeDecision) -> PluginDecision:
    kind = decision.WhichOneof("decision")
    if kind == "revise":
        revise = decision.revise
        return PluginDecision(
            plugin, FinalizeAnswer.REVISE, revise.reason, revise.objection_key, revise.max_attempts or 1
        )
    if kind == "finalize":
        return PluginDecision(plugin, FinalizeAnswer.FINALIZE, decision.finalize.reason)
    return PluginDecision(plugin, FinalizeAnswer.CONTINUE)
