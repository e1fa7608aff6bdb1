"""Approvals as they are shown, and the decisions that their forms send."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spawnmesh_console.domain.readable_json import readable_json, texts_within
from spawnmesh_console.domain.states import ShownState

APPROVE, EDIT, DENY, ANSWER = "approve", "edit", "deny", "answer"

NOTICES = {
    APPROVE: "Approved: the call is made as it was asked for.",
    EDIT: "Approved with your arguments: the call is made with them.",
    DENY: "Denied: the model reads your reason, and the run goes on.",
    ANSWER: "Answered: the model reads your answer, and the run goes on.",
}
"""The notice after each decision. Addresses name the decision, never the notice."""

_STATES = {
    "PENDING": ShownState("waits for a person", "waiting", is_live=True),
    "APPROVED": ShownState("approved", "succeeded"),
    "DENIED": ShownState("denied", "failed"),
    "ANSWERED": ShownState("answered", "succeeded"),
    "EXPIRED": ShownState("expired", "stopped"),
    "WITHDRAWN": ShownState("withdrawn", "closed"),
}
_UNKNOWN = ShownState("unknown", "closed")
_SENT_TEXT = {EDIT: "The edited text", DENY: "The reason", ANSWER: "The answer"}

_SHOWN_LINES, _SHOWN_CHARS = 14, 1500
_LINE_CHARS = 110
_SMALL_REST = 300  # A shorter rest is not worth a fold.
_SHOWN_IN_LIST, _EDITED_IN_LIST = 4000, 8000  # Characters: a list of many must stay small.


def approval_state(state: str) -> ShownState:
    """Return how the state of an approval, such as `PENDING`, is shown."""
    return _STATES.get(state, _UNKNOWN)


def fate(on_expiry: str, *, is_call: bool, is_escalated: bool = False) -> str:
    """Return what happens if no person decides in time."""
    if on_expiry == "FAIL":
        return "then the run fails"
    if on_expiry == "ESCALATE" and not is_escalated:
        return "then it is escalated: webhooks are told, and it waits for as long again"
    return f"then {'the call is denied' if is_call else 'it stays unanswered'} and the run goes on"


@dataclass(frozen=True, slots=True)
class ShownArguments:
    """The arguments of a call: JSON to edit, its beginning, and the rest if it is long.

    `texts` are the texts of several lines in it, by name, as the tool gets them. In a list,
    `is_cut` is True if there is more than the beginning and the rest, and `text` is empty if it is
    too long to be edited there.
    """

    text: str
    beginning: str
    rest: str
    texts: tuple[tuple[str, str], ...]
    is_cut: bool = False

    @property
    def one_line(self) -> str:
        """The beginning of the text in one line."""
        line = " ".join(self.beginning[: 2 * _LINE_CHARS].split())
        return line if len(line) <= _LINE_CHARS else line[:_LINE_CHARS] + "…"


def shown_arguments(arguments_json: str, *, in_list: bool = False) -> ShownArguments:
    """Return how the arguments of a call are shown: completely, or in a list of many."""
    text = readable_json(arguments_json, _EDITED_IN_LIST + 1 if in_list else None)
    shown = text[:_SHOWN_IN_LIST] if in_list else text
    is_cut = len(shown) < len(text)
    beginning = "\n".join(shown.split("\n", _SHOWN_LINES)[:_SHOWN_LINES])[:_SHOWN_CHARS]
    if len(shown) - len(beginning) < _SMALL_REST:
        beginning = shown
    return ShownArguments(
        "" if in_list and len(text) > _EDITED_IN_LIST else text,
        beginning,
        shown[len(beginning) :],
        () if is_cut else texts_within(arguments_json),
        is_cut,
    )


class NotDecided(ValueError):
    """The form lacks something. The message says what, to the person."""


@dataclass(frozen=True, slots=True)
class SentDecision:
    """The decision that a form sends. `text` are edited arguments, a reason or an answer; `choice`
    is the number of a chosen answer, or empty.
    """

    kind: str
    text: str = ""
    choice: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> "SentDecision":
        """Return the decision in the fields of a form. Browsers send each new line as two
        characters.
        """
        text, choice = fields.get("text"), fields.get("choice")
        return cls(
            str(fields.get("decision", "")),
            text.replace("\r\n", "\n") if isinstance(text, str) else "",
            choice if isinstance(choice, str) else "",
        )

    def edited_arguments(self, asked_json: str) -> str:
        """Return the arguments to approve; empty if they are those that were asked for.

        Raises NotDecided without any: the mesh would take the call as it was asked for.
        """
        edited = self.text.strip()
        if not edited:
            raise NotDecided("There are no arguments. Those of a call without any are {}.")
        return "" if edited == readable_json(asked_json) else edited

    def answer(self, choices: Sequence[str]) -> str:
        """Return the answer to a question. Raises NotDecided without one."""
        if not choices:
            if not self.text.strip():
                raise NotDecided("There is no answer.")
            return self.text
        numbers = [str(place) for place in range(len(choices))]
        if self.choice not in numbers:
            raise NotDecided("Choose an answer: what was sent is not one of the choices.")
        return choices[numbers.index(self.choice)]

    def problem(self, descriptions: Sequence[str], message: str) -> str:
        """Return why the mesh refused the decision: from the descriptions of malformed fields, if
        there are any, else the message.
        """
        subject = _SENT_TEXT.get(self.kind)
        if subject is None or not descriptions:
            return message
        return f"{subject} {'; '.join(descriptions)}"
