"""Spawns: the request, the limits that refuse it, and why it failed.

The refusals of a spawn, in the order in which they apply:

 1. INVALID_ARGUMENT, and NOT_FOUND if a run names another parent than its own session:
    the interceptors and `rpc.spawn_session`
 2. UNKNOWN_TENANT: `store.spawns.read_spawn_context`
 3. A known request_id gets the answer of its first call, or REQUEST_ID_REUSED, NOT_FOUND or
    SPAWN_IN_PROGRESS, and none of the refusals below: `operations.spawn_saga`
 4. UNKNOWN_AGENT, and NOT_FOUND for the parent or the session to fork:
    `store.spawns.read_spawn_context`
 5. RUN_LEASE_LOST, if a run spawns: `operations.spawn_saga`
 6. ATTACHMENTS_UNSUPPORTED_RUNTIME, FORK_WITHOUT_PARENT: `check_spawn`
 7. With a parent, SESSION_CLOSED, AGENT_NOT_SPAWNABLE, SPAWN_DEPTH_EXCEEDED, SPAWN_COUNT_EXCEEDED,
    CHILDREN_LIMIT_EXCEEDED: `check_spawn`
 8. RUN_QUEUE_FULL: `check_spawn`, which calls `domain.runs.check_queue`

Only 2, 3, 4 and 8 can refuse a plain spawn, which has no parent, no fork, no budget and no files
for an external runtime. The statement `begin_spawn` tests these four conditions and inserts the
session if they hold, so a plain spawn that it begins skips `check_spawn`. It refuses nothing: if it
inserts nothing, the checks above follow and give the reason.

After its row is inserted, a spawn can still fail at a step of the saga: see `spawn_error`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from spawnmesh_core.errors import HAS_ALLOW_FACT, TRANSIENT_FACT, MeshError, transient_fact
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

from spawnmesh_session.domain.agents import EVERY_AGENT, AgentProfile
from spawnmesh_session.domain.budgets import FamilyLimits
from spawnmesh_session.domain.runs import check_queue
from spawnmesh_session.domain.text import without_nul

_MOUNT_PATH = re.compile(r"[A-Za-z0-9._/:-]*")


@dataclass(frozen=True, slots=True)
class SpawnSpec:
    """A requested spawn before anything exists. The content of attachments is not in it."""

    session_id: str
    request_id: str
    payload_hash: bytes
    task_hash: str
    agent_id: str
    label: str
    model: str
    mode: str
    context: str
    cleanup: str
    runtime: str
    run_timeout: timedelta
    parent_session_id: str
    parent_run_id: str
    mount_path: str
    attachment_count: int
    traceparent: str
    parent_epoch: int = 0
    mount_path_ignored: bool = False
    thinking: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    fork_session_id: str = ""
    fork_seq: int = 0  # 0 if the spawn names no entry.
    budget: FamilyLimits | None = None

    @property
    def fork_source(self) -> str:
        """Return the session whose messages are copied; empty without a fork."""
        return (self.fork_session_id or self.parent_session_id) if self.context == "FORK" else ""

    @property
    def spawner(self) -> str:
        """Return the session whose run spawns; empty for a client.

        A request_id belongs to its spawner.
        """
        return self.parent_session_id if self.parent_run_id else ""

    @property
    def is_plain(self) -> bool:
        """Return whether only the tenant, its agent and its queue can refuse the spawn, and nothing
        but its session begins with it.
        """
        return not (
            self.parent_session_id
            or self.budget is not None
            or self.context == "FORK"
            or (self.runtime == "EXTERNAL" and self.attachment_count)
        )


@dataclass(frozen=True, slots=True)
class SpawnLimits:
    """A tenant's limits on spawning."""

    max_spawn_depth: int = 5
    max_live_child_count: int = 5
    max_queued_run_count: int = 1000
    max_running_run_count: int = 32
    max_spawn_count: int = 0  # 0 is no limit.
    run_weight: int = 1


def spawn_limits_of(settings: Mapping[str, object]) -> SpawnLimits:
    """Read the limits from a tenant's stored settings. An absent limit, or 0, has its default."""
    defaults = SpawnLimits()

    def limit(name: str) -> int:
        value = settings.get(name)
        return value if isinstance(value, int) and value > 0 else int(getattr(defaults, name))

    return SpawnLimits(*(limit(name) for name in SpawnLimits.__slots__))


@dataclass(frozen=True, slots=True)
class SpawnParent:
    """The facts about a parent that decide whether it may spawn."""

    session_id: str
    state: str
    agent: AgentProfile
    ancestor_ids: tuple[str, ...]
    live_child_count: int
    spawn_count: int = 0
    budget_session_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpawnFailure:
    """The reason for which a spawn was undone.

    It is stored. If it would fail again (`is_final`), a repeat gets the same answer; otherwise a
    repeat starts over, and its session is a new one.
    """

    step: str
    reason: str
    message: str
    status: str
    facts: dict[str, str]

    @classmethod
    def of(cls, step: str, error: MeshError) -> "SpawnFailure":
        """Store the error of this step."""
        facts = {without_nul(name): without_nul(value) for name, value in error.facts.items()}
        return cls(step, error.reason, without_nul(error.message), error.status, facts)

    @classmethod
    def cut_off(cls, step: str) -> "SpawnFailure":
        """Return the failure of a spawn that ended before its last step. A repeat starts over."""
        return cls.of(step, _cut_off("the spawn was cut off and undone", step, Status.UNAVAILABLE))

    @classmethod
    def killed(cls) -> "SpawnFailure":
        """Return the failure of a spawn that was killed. A repeat does not spawn it again."""
        message = "the session was killed while it was being spawned; spawn again with a new request_id"
        return cls.of("kill", MeshError(Reason.SPAWN_FAILED, message, facts={"step": "kill"}))

    @property
    def is_final(self) -> bool:
        """Return whether the same request would fail again."""
        return not _may_succeed_later(self.reason, self.status, self.facts)

    def as_error(self) -> MeshError:
        """Return the error for the caller and for each repeat."""
        return MeshError(
            Reason(self.reason),
            self.message,
            status=Status(self.status),
            retry_after_seconds=None if self.is_final else 1.0,
            facts=self.facts,
        )


@dataclass(frozen=True, slots=True)
class KnownSpawn:
    """A spawn that another call began; `deleted` if its session was deleted."""

    session_id: str
    state: str
    payload_hash: bytes
    failure: SpawnFailure | None
    deleted: bool


def check_spawn(spec: SpawnSpec, parent: SpawnParent | None, limits: SpawnLimits, waiting_count: int) -> None:
    """Raise the first refusal that applies, in the order of the list above. Nothing exists yet."""
    if spec.runtime == "EXTERNAL" and spec.attachment_count:
        raise MeshError(
            Reason.ATTACHMENTS_UNSUPPORTED_RUNTIME,
            "a session with runtime EXTERNAL takes no attachments; hand the files over another way",
            facts={"attachment_count": spec.attachment_count},
        )
    if spec.context == "FORK" and parent is None and not spec.fork_session_id:
        raise MeshError(
            Reason.FORK_WITHOUT_PARENT,
            "context FORK copies from a parent or the session in `fork`, and this spawn has neither",
        )
    if parent is not None:
        _check_parent(spec, parent, limits)
    check_queue(waiting_count, limits.max_queued_run_count)


def _check_parent(spec: SpawnSpec, parent: SpawnParent, limits: SpawnLimits) -> None:
    if parent.state != "ACTIVE":
        raise MeshError(
            Reason.SESSION_CLOSED,
            "the parent session is not active, so it cannot spawn",
            facts={"session_id": parent.session_id, "state": parent.state},
        )
    allowed = parent.agent.spawnable_agents
    if EVERY_AGENT not in allowed and spec.agent_id not in allowed:
        raise MeshError(
            Reason.AGENT_NOT_SPAWNABLE,
            f"agent {parent.agent.agent_id} may not spawn agent {spec.agent_id}",
            facts={"agent_id": spec.agent_id, "parent_agent_id": parent.agent.agent_id},
        )
    depth = len(parent.ancestor_ids) + 1
    if depth > limits.max_spawn_depth:
        raise MeshError(
            Reason.SPAWN_DEPTH_EXCEEDED,
            f"the session would be nested {depth} deep, and the limit is {limits.max_spawn_depth}",
            facts={"limit": limits.max_spawn_depth, "depth": depth},
        )
    if 0 < limits.max_spawn_count <= parent.spawn_count:
        raise MeshError(
            Reason.SPAWN_COUNT_EXCEEDED,
            "the parent has spawned as many children in its life as it may",
            facts={"limit": limits.max_spawn_count, "spawned": parent.spawn_count},
        )
    if parent.live_child_count >= limits.max_live_child_count:
        raise MeshError(
            Reason.CHILDREN_LIMIT_EXCEEDED,
            "the parent has as many live children as it may; wait for one to end",
            retry_after_seconds=1.0,
            facts={"limit": limits.max_live_child_count, "live": parent.live_child_count},
        )


_OWN_REASONS = frozenset(
    {Reason.SPAWN_REFUSED, Reason.SPAWN_FAILED, Reason.PLUGIN_FAILED, Reason.FORK_SEQ_REFUSED}
)
_UNCERTAIN = (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED, Status.INTERNAL)
_TRANSIENT = frozenset({*_UNCERTAIN, Status.ABORTED, Status.CANCELLED})
# Their status is one of an outage, but the same message is as large, and takes as long to process.
_SAME_AGAIN = frozenset({Reason.MESSAGE_TOO_LARGE, Reason.PROCESSING_TIME_EXCEEDED})


def is_uncertain(error: BaseException) -> bool:
    """Return whether a failed step may have had its effect."""
    return not isinstance(error, MeshError) or error.status in _UNCERTAIN


def _may_succeed_later(reason: str, status: str, facts: Mapping[str, str]) -> bool:
    """Return whether a repeat may succeed: the fact `is_transient` says it, else reason and
    status.
    """
    if TRANSIENT_FACT in facts:
        return facts[TRANSIENT_FACT] == transient_fact(True)
    return reason not in _SAME_AGAIN and status in _TRANSIENT


def may_succeed_later(error: MeshError) -> bool:
    """Return whether a spawn that was refused with the error may succeed later."""
    return _may_succeed_later(error.reason, error.status, error.facts)


def spawn_error(step: str, error: MeshError) -> MeshError:
    """Return the error for the caller of the spawn.

    Errors that the caller caused stay as they are. Every other error becomes SPAWN_FAILED with the
    step and the cause: UNAVAILABLE if a repeat may succeed, else FAILED_PRECONDITION.
    """
    if error.reason in _OWN_REASONS or error.reason.startswith(("ATTACHMENT", "UPLOAD")):
        return error
    is_transient = _may_succeed_later(error.reason, error.status, error.facts)
    what_to_do = (
        "repeat the call with the same request_id"
        if is_transient
        else "it would fail again; spawn with a new request_id when the cause is gone"
    )
    return MeshError(
        Reason.SPAWN_FAILED,
        f"the spawn was undone at step {step!r}: {error.message}; {what_to_do}",
        status=Status.UNAVAILABLE if is_transient else Status.FAILED_PRECONDITION,
        facts={**error.facts, "step": step, "cause": error.reason},
    )


STEPS = ("gate", "provision", "activate")
"""The steps of a spawn that call other services, in their order."""


class PluginAllowed(StrEnum):
    """The knowledge of the undo about a spawn that failed: a plugin that allowed it has to hear so.

    It is UNKNOWN if the answer was lost, or came to a process that died.
    """

    YES = "YES"
    NO = "NO"
    UNKNOWN = "UNKNOWN"


def allowed_before(step: str, refusal: MeshError | None) -> PluginAllowed:
    """Return whether a plugin had allowed the spawn that failed at this step.

    `refusal` is None if the step was cancelled or met a defect.
    """
    if step != "gate":
        return PluginAllowed.YES
    if refusal is not None and refusal.reason in (Reason.SPAWN_REFUSED, Reason.PLUGIN_FAILED):
        return PluginAllowed.YES if HAS_ALLOW_FACT in refusal.facts else PluginAllowed.NO
    return PluginAllowed.UNKNOWN


def overtaken() -> MeshError:
    """Build the refusal of a spawn that was undone while its saga was in progress."""
    what = "the spawn took longer than it may and was undone meanwhile"
    return _cut_off(what, "deadline", Status.ABORTED)


def _cut_off(what: str, step: str, status: Status) -> MeshError:
    return MeshError(
        Reason.SPAWN_FAILED,
        f"{what}; repeat the call with the same request_id",
        status=status,
        facts={"step": step},
    )


def mount_path_of(hint: str) -> str:
    """Return the caller's hint if its characters are harmless, else an empty string.

    The hint is recorded and shown, and never used as a path.
    """
    return hint if _MOUNT_PATH.fullmatch(hint) else ""


def mount_note(mount_path: str) -> str:
    """Return the sentence about the mount path for the system note; empty without a mount path."""
    if not mount_path:
        return ""
    return (
        f"\nThe sender calls this folder `{mount_path}`: that is a name, and not a path where the files are."
    )
