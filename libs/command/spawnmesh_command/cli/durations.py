"""Times that are typed, such as 90s, 10m or 1h30m."""

import re
from datetime import timedelta

import typer
from spawnmesh_client.budget_texts import time_text

_TIME = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_SECONDS = (86_400, 3600, 60, 1)
_LONGEST_TEXT = 20


def seconds_of(text: str) -> int | None:
    """Return the seconds of a time; None for a text that is none."""
    found = _TIME.fullmatch(text)
    if not text or not text.isascii() or found is None or len(text) > _LONGEST_TEXT:
        return None
    return sum(int(part or 0) * unit for part, unit in zip(found.groups(), _SECONDS, strict=True))


def bounded_seconds(text: str, hint: str, *, least: int, most: int) -> int:
    """Return the seconds of a time between the bounds. Raise BadParameter for another text."""
    seconds = seconds_of(text)
    if seconds is None or not least <= seconds <= most:
        bounds = f"{time_text(timedelta(seconds=least))} to {time_text(timedelta(seconds=most))}"
        raise typer.BadParameter(
            f"is a time from {bounds}, such as 90s, 10m or 1h30m, not {text!r}", param_hint=hint
        )
    return seconds
