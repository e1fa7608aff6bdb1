"""The limits of a budget as people write them in a form, and as they are shown to them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import ROUND_DOWN, Decimal

_MICROS = 1_000_000
_MAX_COUNT = 2**63 - 1
_MAX_RUN_TIME = timedelta(days=365)
_COST = re.compile(r"\d{1,12}(\.\d{1,6})?")
_COUNT = re.compile(r"\d{1,19}")
_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d{1,6})?)s)?")
_FIELDS = ("cost", "tokens", "calls", "time")


class WrongLimit(ValueError):
    """A field of the form is no limit. The text is for the person."""


@dataclass(frozen=True, slots=True)
class LimitAmounts:
    """The limits of a budget. One that is 0 is none."""

    cost_micros: int = 0
    token_count: int = 0
    model_call_count: int = 0
    run_time: timedelta = timedelta()

    def __bool__(self) -> bool:
        """True if there is a limit."""
        return self != LimitAmounts()

    def changed_fields(self, before: "LimitAmounts") -> tuple[str, ...]:
        """Return the fields of the message `Budget` in which the two differ."""
        pairs = {
            "max_cost_micros": (self.cost_micros, before.cost_micros),
            "max_token_count": (self.token_count, before.token_count),
            "max_model_call_count": (self.model_call_count, before.model_call_count),
            "max_run_time": (self.run_time, before.run_time),
        }
        return tuple(name for name, (one, other) in pairs.items() if one != other)


@dataclass(frozen=True, slots=True)
class LimitTexts:
    """The fields of a form with limits, as texts. An empty one stands for no limit."""

    cost: str = ""
    tokens: str = ""
    calls: str = ""
    time: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> "LimitTexts":
        """Return the texts that were sent: those of `limit_cost`, `limit_tokens` and so on."""
        texts = (fields.get(f"limit_{name}") for name in _FIELDS)
        return cls(*(text.strip() if isinstance(text, str) else "" for text in texts))

    @classmethod
    def for_limits(cls, limits: LimitAmounts) -> "LimitTexts":
        """Return the texts that mean exactly these limits."""
        return cls(
            money(limits.cost_micros).replace(",", "") if limits.cost_micros else "",
            str(limits.token_count or ""),
            str(limits.model_call_count or ""),
            span_text(limits.run_time) if limits.run_time else "",
        )

    def limits(self) -> LimitAmounts:
        """Return the limits. Raises WrongLimit."""
        return LimitAmounts(
            _micros(self.cost),
            _count(self.tokens, "the tokens"),
            _count(self.calls, "the model calls"),
            _run_time(self.time),
        )

    def texts(self) -> dict[str, str]:
        """Return the texts that are not empty, by the names that `--budget` has for them."""
        named = zip(_FIELDS, (self.cost, self.tokens, self.calls, self.time), strict=True)
        return {name: text for name, text in named if text}


def money(micros: int) -> str:
    """Return an amount of money in units of its currency, such as `0.52`, with all its digits and
    at least two behind the point.
    """
    whole, rest = divmod(abs(micros), _MICROS)
    digits = f"{rest:06}".rstrip("0").ljust(2, "0")
    return f"{'-' if micros < 0 else ''}{whole:,}.{digits}"


def short_money(micros: int) -> str:
    """Return an amount as `money` does, cut behind four digits that count."""
    exact = Decimal(micros) / _MICROS
    places = max(2, min(6, 3 - exact.adjusted())) if exact else 2
    return money(int(exact.quantize(Decimal(1).scaleb(-places), ROUND_DOWN) * _MICROS))


def span_text(span: timedelta) -> str:
    """Return a span of time in the notation of `--budget`, such as `10m` or `1h30m`, exactly."""
    seconds, micros = divmod(span // timedelta(microseconds=1), _MICROS)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    parts = [f"{hours}h" if hours else "", f"{minute}m" if minute else ""]
    if second or micros:
        parts.append(f"{second}" + (f".{micros:06}".rstrip("0") if micros else "") + "s")
    return "".join(parts) or "0s"


def _micros(text: str) -> int:
    plain = text.replace(" ", "")
    if not plain:
        return 0
    if not plain.isascii() or not _COST.fullmatch(plain):
        raise WrongLimit("Write the cost as a number, such as 0.50, with at most six decimals.")
    return int(Decimal(plain) * _MICROS)


def _count(text: str, name: str) -> int:
    plain = text.replace(",", "").replace(" ", "")
    if not plain:
        return 0
    if not plain.isascii() or not _COUNT.fullmatch(plain) or int(plain) > _MAX_COUNT:
        raise WrongLimit(f"Write {name} as a whole number, such as 200000.")
    return int(plain)


def _run_time(text: str) -> timedelta:
    plain = text.replace(" ", "").lower()
    if not plain:
        return timedelta()
    found = _SPAN.fullmatch(plain) if plain.isascii() and len(plain) <= 40 else None
    if found is None:
        raise WrongLimit("Write the run time with its units, such as 10m, 1h30m or 45s.")
    days, hours, minutes, seconds = (Decimal(part or 0) for part in found.groups())
    micros = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * _MICROS
    if micros > _MAX_RUN_TIME // timedelta(microseconds=1):
        raise WrongLimit("The run time is at most 365 days.")
    return timedelta(microseconds=int(micros))
