"""The filter of the list of sessions, from the fields of its form."""

from dataclasses import dataclass, fields

_STATES = (
    "QUEUED",
    "RUNNING",
    "FINALIZING",
    "WAITING_APPROVAL",
    "WAITING_BUDGET",
    "SUCCEEDED",
    "FAILED",
    "TIMED_OUT",
    "KILLED",
    "INTERRUPTED",
)


@dataclass(frozen=True, slots=True)
class ChosenFilter:
    """The fields of the form. `expression` is a filter in the language of ListSessions."""

    state: str = ""
    agent: str = ""
    label: str = ""
    reason: str = ""
    since: str = ""
    expression: str = ""

    @property
    def states(self) -> tuple[str, ...]:
        """The states of runs that can be chosen."""
        return _STATES

    @property
    def is_empty(self) -> bool:
        """True if nothing is chosen."""
        return not any(getattr(self, one.name) for one in fields(self))

    def query(self) -> dict[str, str]:
        """Return the parameters of the address that stand for the choice."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name))}

    def text(self) -> str:
        """Return the filter for ListSessions."""
        parts = [
            f"{name} = {_quoted(value)}"
            for name, value in (
                ("run_state", self.state),
                ("agent_id", self.agent),
                ("label", self.label),
                ("failure_reason", self.reason),
            )
            if value
        ]
        if self.since:
            parts.append(f"create_time > {_quoted(self.since)}")
        if self.expression:
            parts.append(self.expression)
        return " AND ".join(parts)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
