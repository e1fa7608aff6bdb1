"""Dependencies of the RPCs; `app.py` fills them."""

from dataclasses import dataclass
from datetime import timedelta

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener
from spawnmesh_postgres.long_running.operations import Operations
from spawnmesh_runtime.limiter import FairLimiter

from spawnmesh_session.clients.tenant_participants import TenantParticipants
from spawnmesh_session.domain.tenant_classes import TenantClasses
from spawnmesh_session.metrics import RunMetrics
from spawnmesh_session.operations.approval_decisions import ApprovalDecider
from spawnmesh_session.operations.approval_requests import ApprovalRequester
from spawnmesh_session.operations.budget_changes import BudgetChanger
from spawnmesh_session.operations.budget_waits import BudgetWaits
from spawnmesh_session.operations.call_limits_feed import CallLimitsFeed
from spawnmesh_session.operations.family_kill import FamilyKiller
from spawnmesh_session.operations.file_publishing import FilePublisher
from spawnmesh_session.operations.finalize_saga import FinalizeSaga
from spawnmesh_session.operations.member_watch import WatchSource
from spawnmesh_session.operations.message_sending import MessageSender
from spawnmesh_session.operations.model_call_counting import ModelCallCounter
from spawnmesh_session.operations.revocation_feed import RevocationFeed
from spawnmesh_session.operations.run_change_hints import RunChangeHints
from spawnmesh_session.operations.run_claiming import RunClaimer
from spawnmesh_session.operations.run_interruption import RunInterrupter
from spawnmesh_session.operations.run_termination import RunTerminator
from spawnmesh_session.operations.run_tokens import RunTokens
from spawnmesh_session.operations.scheduled_spawns import ScheduledSpawner
from spawnmesh_session.operations.session_deletion import SessionDeleter
from spawnmesh_session.operations.settings_push import SettingsPush
from spawnmesh_session.operations.spawn_saga import SpawnSaga


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The parts that the RPCs share.

    `watch_limit` bounds the reads of waiting and watching calls: notifications may wake thousands
    of them at once, and they must leave connections for the other calls. Tenants take turns, and
    one gets half of it at most.
    """

    database: Database
    listener: Listener
    spawn_saga: SpawnSaga
    finalize_saga: FinalizeSaga
    claimer: RunClaimer
    terminator: RunTerminator
    killer: FamilyKiller
    interrupter: RunInterrupter
    publisher: FilePublisher
    requester: ApprovalRequester
    decider: ApprovalDecider
    budgets: BudgetChanger
    budget_waits: BudgetWaits
    model_calls: ModelCallCounter
    scheduled: ScheduledSpawner
    sender: MessageSender
    run_changes: RunChangeHints
    deleter: SessionDeleter
    settings_push: SettingsPush
    participants: TenantParticipants
    metrics: RunMetrics
    run_tokens: RunTokens
    lease_ttl: timedelta
    revocations: RevocationFeed
    call_limits: CallLimitsFeed
    tenant_classes: TenantClasses
    max_token_lifetime: timedelta
    watch_limit: FairLimiter
    operations: Operations
    watch_source: WatchSource
