"""Views of what a tenant's operators set up: agents, models, plugins and tenants.

The fields are named as in the contracts, which say what each one means. Times are in UTC.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import auto

from spawnmesh_client.approval_views import ApprovalPolicy
from spawnmesh_client.view_of import Word
from spawnmesh_client.views import ThinkingLevel


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent of the tenant: the profile that a session runs with.

    `version` and `etag` are the mesh's. An agent that is written with the etag that it was read
    with replaces this version alone.
    """

    agent_id: str
    system_prompt: str = ""
    models: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    spawnable_agents: tuple[str, ...] = ()
    max_turn_count: int = 0
    context_token_budget: int = 0
    thinking: ThinkingLevel | None = None
    mcp_servers: tuple[str, ...] = ()
    version: int = 0
    etag: str = ""
    approval: ApprovalPolicy | None = None


class CooldownScope(Word):
    """The thing that cools down after failures."""

    UNKNOWN = auto()
    MODEL = auto()
    CREDENTIAL = auto()
    PROVIDER = auto()


class ProviderKind(Word):
    """The API of a provider."""

    UNKNOWN = auto()
    ANTHROPIC = auto()
    GEMINI = auto()
    OPENAI = auto()
    OPENAI_COMPATIBLE = auto()


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the mesh can call."""

    model: str
    provider_kind: ProviderKind
    context_window_token_count: int
    max_output_token_count: int
    vision: bool
    tools: bool
    aliases: tuple[str, ...]
    is_primary: bool
    thinking_levels: tuple[ThinkingLevel, ...]


@dataclass(frozen=True, slots=True)
class Cooldown:
    """A model, credential or provider that is not called for a while.

    `start_time` is that of the newest failure that `failure_count` counts.
    """

    scope: CooldownScope
    target: str
    start_time: datetime | None
    until_time: datetime | None
    failure_count: int


@dataclass(frozen=True, slots=True)
class ProviderHealth:
    """The credentials of a provider and its cooldowns."""

    provider: str
    credential_count: int
    readable_credential_count: int
    cooldowns: tuple[Cooldown, ...]


class HookKind(Word):
    """The moments at which plugins are called."""

    UNKNOWN = auto()
    BEFORE_SPAWN = auto()
    BEFORE_AGENT_FINALIZE = auto()
    SUBAGENT_ENDED = auto()
    SUBAGENT_SPAWNED = auto()
    BEFORE_MODEL_RESOLVE = auto()
    BEFORE_PROMPT_BUILD = auto()
    LLM_INPUT = auto()
    LLM_OUTPUT = auto()
    BEFORE_TOOL_CALL = auto()
    AFTER_TOOL_CALL = auto()
    AGENT_END = auto()
    SESSION_START = auto()
    SESSION_END = auto()
    DELIVERY_TARGET = auto()
    BEFORE_COMPACTION = auto()
    AFTER_COMPACTION = auto()
    APPROVAL_REQUESTED = auto()
    APPROVAL_ESCALATED = auto()
    APPROVAL_DECIDED = auto()
    BUDGET_REACHED = auto()
    BUDGET_CHANGED = auto()
    FILES_PUBLISHED = auto()


class FailurePolicy(Word):
    """The decision when a plugin fails."""

    UNKNOWN = auto()
    OPEN = auto()
    CLOSED = auto()


class Grant(Word):
    """A right of a plugin."""

    UNKNOWN = auto()
    CONVERSATION_ACCESS = auto()
    FINALIZE_CONTROL = auto()
    PROMPT_INJECTION = auto()


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin of the tenant. A field that is None or 0 means the default of the contract."""

    name: str
    endpoint: str
    hooks: tuple[HookKind, ...]
    priority: int = 0
    timeout: timedelta | None = None
    failure_policy: FailurePolicy | None = None
    grants: tuple[Grant, ...] = ()
    max_concurrent_calls: int = 0
    paused: bool = False
    bundled: bool = False
    max_wait: timedelta | None = None
    etag: str = ""


class DeliveryDecision(Word):
    """The outcome of a call of a plugin."""

    UNKNOWN = auto()
    ALLOW = auto()
    DENY = auto()
    CONTINUE = auto()
    REVISE = auto()
    FINALIZE = auto()
    PROCEED = auto()
    REWRITE = auto()
    BLOCK = auto()
    CHOSEN = auto()
    CHANGED = auto()
    COMPACT = auto()
    KEEP_WHOLE = auto()
    TOLD = auto()
    FAILED = auto()
    SKIPPED = auto()
    DEAD = auto()
    CAPPED = auto()
    REQUIRE_APPROVAL = auto()


@dataclass(frozen=True, slots=True)
class PluginDelivery:
    """One call of a plugin."""

    plugin: str
    hook: HookKind
    session_id: str
    run_id: str
    start_time: datetime | None
    latency: timedelta | None
    decision: DeliveryDecision
    error: str
    attempt: int


class TenantState(Word):
    """The states of a tenant."""

    UNKNOWN = auto()
    CREATING = auto()
    ACTIVE = auto()
    DELETING = auto()
    DELETED = auto()


@dataclass(frozen=True, slots=True)
class TenantDeletion:
    """The progress of the deletion of a tenant."""

    request_time: datetime | None
    end_time: datetime | None
    killed_run_count: int
    deleted_session_count: int
    deleted_transcript_count: int
    deleted_object_count: int
    stalled_by: str


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant."""

    tenant_id: str
    display_name: str
    settings_version: int
    create_time: datetime | None
    state: TenantState
    deletion: TenantDeletion | None
    etag: str
