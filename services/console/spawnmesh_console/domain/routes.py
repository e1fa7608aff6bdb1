"""The route of a model call: which candidates would be called, and why others would not."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from spawnmesh_console.domain.cooldowns import reason_words
from spawnmesh_console.domain.states import ShownState


@dataclass(frozen=True, slots=True)
class RouteQuestion:
    """A request whose route is explained. With `is_only_these`, no configured fallbacks follow."""

    model: str
    fallbacks: tuple[str, ...]
    is_only_these: bool
    has_tools: bool
    has_image: bool
    text: str

    @property
    def fallback_text(self) -> str:
        """The fallbacks as the form has them."""
        return ", ".join(self.fallbacks)


@dataclass(frozen=True, slots=True)
class RouteVerdict:
    """The verdict about a candidate, named as in the contracts."""

    model: str
    verdict: str
    reason: str
    until: datetime | None
    detail: str
    images: str
    is_of_tenant: bool


@dataclass(frozen=True, slots=True)
class ShownCandidate:
    """A candidate with its state, and sentences that say why. `until` is the end of a cooldown."""

    model: str
    state: ShownState
    sentences: tuple[str, ...]
    until: datetime | None


_STATES = {
    "READY": ShownState("would be called", "succeeded"),
    "PROBE": ShownState("would be tried", "queued"),
    "COOLING": ShownState("skipped", "stopped"),
    "INCAPABLE": ShownState("skipped", "failed"),
    "NOT_NEEDED": ShownState("not called", "closed"),
}
_NEXT = ShownState("would be next", "queued")
_UNKNOWN = ShownState("unknown", "closed")
_IMAGES = {
    "SENT": "It gets the image.",
    "STRIPPED": "It cannot see images: a note stands for the image.",
    "WITHHELD": "It does not get the image, because another provider was given it.",
    "ROUTED_AROUND": "It cannot see images, and the policy is to call another model then.",
    "REFUSED": "It cannot see images, and the policy refuses the request then.",
}


def names_in(text: str) -> tuple[str, ...]:
    """Return the names that commas or spaces separate, each once."""
    return tuple(dict.fromkeys(text.replace(",", " ").split()))


def shown_candidates(verdicts: Sequence[RouteVerdict]) -> list[ShownCandidate]:
    """Return the candidates in order. Those behind the first ready one are called if it fails."""
    shown: list[ShownCandidate] = []
    is_first = True
    for one in verdicts:
        state = _STATES.get(one.verdict, _UNKNOWN)
        if one.verdict == "READY" and not is_first:
            state = _NEXT
        shown.append(ShownCandidate(one.model, state, _sentences(one, is_first=is_first), one.until))
        is_first = is_first and one.verdict not in ("READY", "PROBE")
    return shown


def _sentences(one: RouteVerdict, *, is_first: bool) -> tuple[str, ...]:
    images = _IMAGES.get(one.images, "")
    return tuple(part for part in (_why(one, is_first=is_first), images) if part)


def _why(one: RouteVerdict, *, is_first: bool) -> str:
    match one.verdict:
        case "READY":
            return "It is called first." if is_first else "It is called if the ones before it fail."
        case "PROBE":
            return "It is in cooldown, and one call tries whether it has recovered."
        case "COOLING":
            calls = "calls of this tenant" if one.is_of_tenant else "calls"
            return f"It is in cooldown after failed {calls}: {reason_words(one.reason)} ({one.reason})."
        case "INCAPABLE":
            return _sentence(one.detail or "it lacks something that the request needs")
        case "NOT_NEEDED":
            return _sentence(one.detail or "an earlier candidate answers")
        case _:
            return _sentence(one.detail)


def _sentence(text: str) -> str:
    """Return a detail of the router as a sentence about the candidate."""
    said = f"it {text}" if text.startswith("cannot ") else text
    return f"{said[:1].upper()}{said[1:]}." if said else ""
