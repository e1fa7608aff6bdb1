"""Schedules and their firings in words, and the form that describes a schedule."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from spawnmesh_console.domain.requested_spawn import DEFAULT_AGENT
from spawnmesh_console.domain.shown_text import harmless
from spawnmesh_console.domain.states import ShownState

OVERLAPS = {
    "SKIP": "spawn nothing, and say so in the history",
    "ALLOW": "spawn another session beside it",
    "REPLACE": "kill it, and then spawn another session",
}
"""The words of OverlapPolicy: what happens while the session of an earlier firing goes on."""

CATCH_UPS = {
    "NONE": "list them in the history alone",
    "LATEST": "fire the newest one",
    "ALL": "fire the newest 100, one after the other",
}
"""The words of CatchUpPolicy: what happens with due times that were missed."""

OUTCOMES = {
    "SPAWNED": ShownState("spawned", "succeeded"),
    "SKIPPED": ShownState("skipped", "stopped"),
    "MISSED": ShownState("missed", "warning"),
    "FAILED": ShownState("failed", "failed"),
}
"""The outcomes that a history can be filtered by."""

DEFAULT_ZONE = "UTC"
DEFAULT_OVERLAP, DEFAULT_CATCH_UP = "SKIP", "NONE"
PAUSED = ShownState("paused", "stopped")
ACTIVE = ShownState("active", "open")
_UNKNOWN = ShownState("unknown", "closed")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_ORDINAL = re.compile(r"(?<!1)([123])th\b")
_ENDINGS = {"1": "1st", "2": "2nd", "3": "3rd"}
_FIELDS = 5
_MAX_CRON_BYTES, _MAX_ZONE_BYTES, _MAX_TASK_BYTES = 200, 64, 65_536
_MAX_WORDS = 90
_ANY_YEAR = datetime(2024, 1, 1)  # noqa: DTZ001  (The words of a cron line do not depend on it.)


class WrongSchedule(ValueError):
    """A field of the form cannot be of a schedule. The text is for the person."""


@dataclass(frozen=True, slots=True)
class SentSchedule:
    """The fields of the form that creates or changes a schedule, as texts.

    An empty agent is the default one. The task is as it is shown: without space around it, and with
    a sign for each character that would be unseen or obeyed.
    """

    name: str = ""
    cron: str = ""
    time_zone: str = ""
    task: str = ""
    agent: str = ""
    overlap: str = DEFAULT_OVERLAP
    catch_up: str = DEFAULT_CATCH_UP

    @classmethod
    def for_schedule(
        cls, name: str, cron: str, time_zone: str, task: str, agent: str, overlap: str, catch_up: str
    ) -> "SentSchedule":
        """Return the fields that stand for a schedule as it is."""
        return cls(
            name,
            " ".join(cron.split()),
            time_zone or DEFAULT_ZONE,
            harmless(task).strip(),
            "" if agent == DEFAULT_AGENT else agent,
            overlap or DEFAULT_OVERLAP,
            catch_up or DEFAULT_CATCH_UP,
        )

    def check(self) -> None:
        """Raise WrongSchedule for a field that no schedule can have. The mesh checks the rest."""
        if not _NAME.fullmatch(self.name):
            raise WrongSchedule("Write a name of at most 63 small letters, digits and hyphens.")
        if (
            len(self.cron.split()) != _FIELDS
            or _bytes(self.cron) > _MAX_CRON_BYTES
            or not _is_cron(self.cron)
        ):
            raise WrongSchedule("Write a cron line of five fields, such as 0 9 * * 1-5.")
        if _bytes(self.time_zone) > _MAX_ZONE_BYTES:
            raise WrongSchedule("Write a time zone such as Europe/Berlin.")
        if not self.task:
            raise WrongSchedule("There is no task.")
        if _bytes(self.task) > _MAX_TASK_BYTES:
            raise WrongSchedule("The task has at most 65,536 bytes.")
        if self.overlap not in OVERLAPS or self.catch_up not in CATCH_UPS:
            raise WrongSchedule("Choose policies that are in the form.")

    def differs_from(self, before: "SentSchedule") -> frozenset[str]:
        """Return the fields of the form in which the two differ, but for the name."""
        names = ("cron", "time_zone", "task", "agent", "overlap", "catch_up")
        return frozenset(name for name in names if getattr(self, name) != getattr(before, name))


def cron_words(cron: str) -> str:
    """Return a cron line in words, such as `at 09:00 on Monday to Friday`; empty if it is not
    simple.
    """
    fields = cron.split()
    if len(fields) != _FIELDS or (not fields[2].startswith("*") and not fields[4].startswith("*")):
        return ""  # With both days given, no short sentence says that either of them suffices.
    try:
        words = CronSim(cron, _ANY_YEAR).explain()
    except CronSimError:
        return ""
    words = _ORDINAL.sub(lambda found: _ENDINGS[found[1]], words).replace(" through ", " to ")
    return words[:1].lower() + words[1:] if len(words) <= _MAX_WORDS else ""


def local_time(time: datetime, time_zone: str) -> str:
    """Return a time as clocks of the zone show it, such as `Mon 2026-12-07 09:00 CET`. A zone that
    this machine does not know is UTC.
    """
    try:
        zone: ZoneInfo = ZoneInfo(time_zone or DEFAULT_ZONE)
    except (ValueError, KeyError, OSError):
        return f"{time.astimezone(UTC):%a %Y-%m-%d %H:%M} UTC"
    return f"{time.astimezone(zone):%a %Y-%m-%d %H:%M %Z}"


def outcome_state(outcome: str) -> ShownState:
    """Return how the outcome of a firing is shown."""
    return OUTCOMES.get(outcome, _UNKNOWN)


def schedule_state(*, is_paused: bool) -> ShownState:
    """Return whether the due times of a schedule are fired."""
    return PAUSED if is_paused else ACTIVE


def _is_cron(cron: str) -> bool:
    if len(cron.split()) != _FIELDS:
        return False
    try:
        CronSim(cron, _ANY_YEAR)
    except CronSimError:
        return False
    return True


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
