"""The chain of candidates of a model call, and the verdict that each of them ends with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from spawnmesh_model_router.domain.cooldown import Cooldown, should_probe
from spawnmesh_model_router.domain.reasons import CHAIN_STOPPING, FailoverReason

# An alias may name an alias; more steps than this is a circle or a mistake.
MAX_ALIAS_STEPS: Final = 8


class ModelRef(NamedTuple):
    """A model of a provider. The provider is lower case; the model is spelled as the provider spells it."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


def parse_ref(name: str, aliases: Mapping[str, str]) -> ModelRef | None:
    """`provider/model`, or an alias of one, or None. The model may contain slashes itself; alias keys are lower case."""
    spelled = name.strip()
    for _ in range(MAX_ALIAS_STEPS):
        target = aliases.get(spelled.lower())
        if target is None:
            break
        spelled = target.strip()
    provider, slash, model = (part.strip() for part in spelled.partition("/"))
    return ModelRef(provider.lower(), model) if slash and provider and model else None


class Origin(StrEnum):
    """Where a candidate comes from."""

    REQUESTED = "REQUESTED"
    FALLBACK = "FALLBACK"
    PRIMARY = "PRIMARY"


class Capability(StrEnum):
    """What a request may need of a model."""

    IMAGES = "IMAGES"
    TOOLS = "TOOLS"


class SkipReason(StrEnum):
    """Why a usable candidate was not asked."""

    NOT_NEEDED = "NOT_NEEDED"
    STRICT = "STRICT"
    PROVIDER_CERTIFICATE = "PROVIDER_CERTIFICATE"
    CHAIN_STOPPED = "CHAIN_STOPPED"
    NO_CREDENTIAL = "NO_CREDENTIAL"
    SIDE_EFFECTS = "SIDE_EFFECTS"


@dataclass(frozen=True)
class Tried:
    """Asked; `reason` is None for the candidate that answered."""

    reason: FailoverReason | None


@dataclass(frozen=True)
class Cooling:
    """Not asked: its model, credential or provider is resting."""

    until: datetime
    reason: FailoverReason


@dataclass(frozen=True)
class Incapable:
    """Not asked: it lacks what the request needs."""

    missing: tuple[Capability, ...]


@dataclass(frozen=True)
class Skipped:
    """Not asked, for a reason that lies outside of it."""

    why: SkipReason


@dataclass(frozen=True)
class UnknownModel:
    """Not asked: the name resolves to no model that is configured."""

    name: str


Verdict = Tried | Cooling | Incapable | Skipped | UnknownModel


@dataclass(frozen=True)
class Candidate:
    """One model of the chain. `name` is what was asked for; `ref` is None when that resolves to nothing."""

    name: str
    ref: ModelRef | None
    origin: Origin
    is_primary: bool
    excluded_by_strict: bool = False


@dataclass(frozen=True)
class Ready:
    """May be asked now; `probe` when it is still cooling and one call finds out whether it has recovered."""

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
    """Requested, then fallbacks, then the primary, each model once, at its first place.

    Without a requested model the primary takes its place. With a requested model and `strict`, the others are listed,
    but excluded: they only get a verdict. With `only_named` the primary comes last for no reason but that it was named.
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
    """Whether `candidate` may be asked, or its verdict. `offers` is None for a model that is not configured.

    `cooldown` is the latest of those on its model, credential and provider.
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
    return Cooling(cooldown.until, cooldown.reason)


def skip_after(failed: ModelRef, reason: FailoverReason, other: ModelRef) -> Skipped | None:
    """What the failure of `failed` means for a candidate further down the chain; None when that may still be asked."""
    if reason in CHAIN_STOPPING:
        return Skipped(SkipReason.CHAIN_STOPPED)
    if reason is FailoverReason.TLS_CERTIFICATE and other.provider == failed.provider:
        return Skipped(SkipReason.PROVIDER_CERTIFICATE)
    return None


def close_chain(
    chain: Sequence[Candidate], verdicts: Mapping[ModelRef, Verdict], rest: SkipReason
) -> tuple[tuple[Candidate, Verdict], ...]:
    """Every candidate with its verdict, in the chain's order; those that nothing was decided for get `rest`."""
    closed: list[tuple[Candidate, Verdict]] = []
    for candidate in chain:
        if candidate.ref is None:
            closed.append((candidate, UnknownModel(candidate.name)))
            continue
        undecided = SkipReason.STRICT if candidate.excluded_by_strict else rest
        closed.append((candidate, verdicts.get(candidate.ref, Skipped(undecided))))
    return tuple(closed)
