"""The reasons for which the trace of a session cannot be shown, and what a person can do."""

from dataclasses import dataclass
from enum import StrEnum


class TraceProblem(StrEnum):
    """A reason for which there is no trace."""

    NOT_CONFIGURED = "NOT_CONFIGURED"
    NO_TRACE = "NO_TRACE"
    NO_SPANS = "NO_SPANS"
    UNREACHABLE = "UNREACHABLE"
    TOO_SLOW = "TOO_SLOW"
    REFUSED = "REFUSED"
    FAILED = "FAILED"
    TOO_LARGE = "TOO_LARGE"
    UNREADABLE = "UNREADABLE"

    @property
    def is_failure(self) -> bool:
        """True if the backend of the traces does not answer as it should."""
        return self not in (self.NOT_CONFIGURED, self.NO_TRACE, self.NO_SPANS)


@dataclass(frozen=True, slots=True)
class ProblemWords:
    """A problem in a sentence, and what a person can do about it."""

    sentence: str
    advice: str


_WORDS = {
    TraceProblem.NOT_CONFIGURED: ProblemWords(
        "This console does not know where the traces are.",
        "An operator can tell it with the setting CONSOLE_TRACES_URL. Look for the trace in your own tool.",
    ),
    TraceProblem.NO_TRACE: ProblemWords(
        "This session has no trace.",
        "It has the trace of its spawn, and there was none.",
    ),
    TraceProblem.NO_SPANS: ProblemWords(
        "No span of this trace is there yet.",
        "A span arrives some seconds after its end: reload the page. A trace that never comes was not "
        "recorded, because only a share of the traces is, or it is older than what is kept.",
    ),
    TraceProblem.UNREACHABLE: ProblemWords(
        "The backend of the traces cannot be reached.",
        "Nothing is lost: reload the page in a moment. The log of the console has the address and the "
        "reason.",
    ),
    TraceProblem.TOO_SLOW: ProblemWords(
        "The backend of the traces did not answer in time.",
        "Nothing is lost: reload the page in a moment.",
    ),
    TraceProblem.REFUSED: ProblemWords(
        "The backend of the traces refused the console.",
        "An operator has to look at the headers in CONSOLE_TRACES_HEADERS_FILE.",
    ),
    TraceProblem.FAILED: ProblemWords(
        "The backend of the traces could not answer.",
        "Reload the page in a moment. If it stays so, an operator has to look at CONSOLE_TRACES_URL and "
        "at the log of the console.",
    ),
    TraceProblem.TOO_LARGE: ProblemWords(
        "The trace is too large for this page.",
        "Look for it in your own tool by its id.",
    ),
    TraceProblem.UNREADABLE: ProblemWords(
        "The answer of the backend is no trace that this page can read.",
        "An operator has to look at CONSOLE_TRACES_URL: it has to lead to OTLP JSON.",
    ),
}


def words_for(problem: TraceProblem) -> ProblemWords:
    """Return the words for the problem."""
    return _WORDS[problem]
