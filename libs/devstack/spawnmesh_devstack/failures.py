"""Failures of a mesh on one machine, each with a text of one line."""


class StackError(Exception):
    """A part of the local stack cannot work. The text is one line for a person at the terminal."""


class PortBusy(StackError):
    """Another process listens on a port that was requested by number."""

    def __init__(self, port: int, purpose: str) -> None:
        super().__init__(f"port {port} for {purpose} is in use by another process")
        self.port = port
        self.purpose = purpose


class StartFailed(StackError):
    """A child process ended, or stayed silent, before it was ready. `log_tail` has the end of its
    log.
    """

    def __init__(self, name: str, why: str, log_tail: str) -> None:
        lines = log_tail.strip().splitlines()
        super().__init__(f"{name} did not start: {why}" + (f" ({lines[-1].strip()})" if lines else ""))
        self.name = name
        self.why = why
        self.log_tail = log_tail
