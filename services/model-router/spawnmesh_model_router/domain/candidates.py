"""The chain of candidates of a model call, and the verdict on each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from spawnmesh_model_router.domain.cooldown import Audience, Cooldown, should_probe
from spawnmesh_model_router.domain.reasons import FailoverReason

# An alias may name an alias. More steps than this are a cycle or a mistake.
MAX_ALIAS_STEPS: Final = 8


class ModelRef(NamedTuple):
    """A model of a provider. The provider is lower case; the model has the provider's spelling."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


def parse_ref(name: str, aliases: Mapping[str, str]) -> ModelRef | None:
    """Parse `provider/model` or an alias of it; return None for any other name.

    The model may contain slashes. The keys of `aliases` are lower case.
    """
    spelled = name.strip()
    for _ in range(MAX_ALIAS_STEPS):
        target = aliases.get(spelled.lower())
        if target is None:
            break
        spelled = target.strip()
    provider, slash, model = (part.strip() for part in spelled.partition("/"))
    return ModelRef(provider.lower(), model) if slash and provider and model else None


class Origin(StrEnum):
    """The origin of a candidate."""

    REQUESTED = "REQUESTED"
    FALLBACK = "FALLBACK"
    PRIMARY = "PRIMARY"


class Capability(StrEnum):
    """A capability of a model that a request may need."""

    IMAGES = "IMAGES"
    TOOLS = "TOOLS"
    CONTEXT_WINDOW = "CONTEXT_WINDOW"
    """A window that holds the request. No model offers it to every request."""


class SkipReason(StrEnum):
    """The reason for which a usable candidate was not called."""

    NOT_NEEDED = "NOT_NEEDED"
    STRICT = "STRICT"
    PROVIDER_CERTIFICATE = "PROVIDER_CERTIFICATE"
    CHAIN_STOPPED = "CHAIN_STOPPED"
    NO_CREDENTIAL = "NO_CREDENTIAL"
    SIDE_EFFECTS = "SIDE_EFFECTS"


@dataclass(frozen=True)
class Tried:
    """The candidate was called. `reason` is None if it answered."""

    reason: FailoverReason | None


@dataclass(frozen=True)
class Cooling:
    """The candidate was not called: its model, credential or provider is in cooldown."""

    until: datetime
    reason: FailoverReason
    audience: Audience = Audience.ALL_TENANTS


@dataclass(frozen=True)
class Incapable:
    """The candidate was not called: it lacks a capability that the request needs."""

    missing: tuple[Capability, ...]


@dataclass(frozen=True)
class Skipped:
    """The candidate was not called, for a reason outside of it."""

    why: SkipReason


@dataclass(frozen=True)
class UnknownModel:
    """The candidate was not called: its name resolves to no configured model."""

    name: str


Verdict = Tried | Cooling | Incapable | Skipped | UnknownModel


@dataclass(frozen=True)
class Candidate:
    """A model of the chain. `ref` is None if the requested `name` does not resolve."""

    name: str
    ref: ModelRef | None
    origin: Origin
    is_primary: bool
    excluded_by_strict: bool = False


@dataclass(frozen=True)
class Ready:
    """The candidate may be called now.

    With `probe` it is still in cooldown, and the call finds out whether it has recovered.
    """

    probe: bool


def build_chain(
    requested: str | None,
    fallbacks: Sequence[str],
    primary: str | None,
    aliases: Mapping[str, str],
    *,
    strict: bool,
    only_named: bool = False,
) -> tuple[Candidate, ...]:
    """Return the chain: the requested model, the fallbacks, the primary. Each model occurs once.

    Without a requested model the primary is the first candidate. With a requested model and
    `strict`, the others are excluded and only get a verdict. With `only_named` the primary is no
    candidate unless the request names it.
    """
    explicit = requested or None
    named = [(explicit or primary, Origin.REQUESTED if explicit else Origin.PRIMARY)]
    named += [(name, Origin.FALLBACK) for name in fallbacks]
    if not only_named:
        named.append((primary, Origin.PRIMARY))
    lowered = {alias.strip().lower(): target for alias, target in aliases.items()}
    primary_ref = parse_ref(primary, lowered) if primary else None
    chain: dict[ModelRef | str, Candidate] = {}
    for name, origin in named:
        if not name:
            continue
        ref = parse_ref(name, lowered)
        candidate = Candidate(
            name=name,
            ref=ref,
            origin=origin,
            is_primary=ref is not None and ref == primary_ref,
            excluded_by_strict=strict and explicit is not None and bool(chain),
        )
        chain.setdefault(ref or name.strip(), candidate)
    return tuple(chain.values())


def assess(
    candidate: Candidate,
    *,
    offers: frozenset[Capability] | None,
    needs: frozenset[Capability],
    cooldown: Cooldown | None,
    now: datetime,
    last_probe: datetime | None = None,
) -> Ready | Verdict:
    """Return Ready if the candidate may be called, otherwise its verdict.

    `offers` is None for a model that is not configured. `cooldown` is the one that blocks the
    candidate.
    """
    if candidate.ref is None or offers is None:
        return UnknownModel(candidate.name)
    if candidate.excluded_by_strict:
        return Skipped(SkipReason.STRICT)
    if missing := needs - offers:
        return Incapable(tuple(sorted(missing)))
    if cooldown is None or not cooldown.active(now):
        return Ready(probe=False)
    if should_probe(cooldown, now, candidate.is_primary, last_probe):
        return Ready(probe=True)
    return Cooling(cooldown.until, cooldown.reason, cooldown.audience)


def skip_after(failed: ModelRef, reason: FailoverReason, other: ModelRef) -> Skipped | None:
    """Return why the failure of `failed` excludes a later candidate; None if it does not."""
    if reason is FailoverReason.NO_FAILOVER:
        return Skipped(SkipReason.CHAIN_STOPPED)
    if reason is FailoverReason.TLS_CERTIFICATE and other.provider == failed.provider:
        return Skipped(SkipReason.PROVIDER_CERTIFICATE)
    return None


def close_chain(
    chain: Sequence[Candidate], verdicts: Mapping[ModelRef, Verdict], unreached: SkipReason
) -> tuple[tuple[Candidate, Verdict], ...]:
    """Return every candidate with its verdict, in order.

    A candidate without a verdict is skipped for the reason `unreached`.
    """
    closed: list[tuple[Candidate, Verdict]] = []
    for candidate in chain:
        if candidate.ref is None:
            closed.append((candidate, UnknownModel(candidate.name)))
            continue
        undecided = SkipReason.STRICT if candidate.excluded_by_strict else unreached
        closed.append((candidate, verdicts.get(candidate.ref, Skipped(undecided))))
    return tuple(closed)
