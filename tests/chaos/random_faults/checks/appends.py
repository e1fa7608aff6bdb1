"""I5: the text of an accepted append is stored once, where it was said to be; that of a refused one
is not stored; and the order of appends respects real time.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import inf

from tests.chaos.random_faults.checks.entry_texts import text_of
from tests.chaos.random_faults.facts import Facts
from tests.chaos.random_faults.history import Call, Outcome

Key = tuple[str, str]
"""A session and a request_id."""


@dataclass(frozen=True, slots=True)
class Append:
    """A stored append. It took effect between its first call and its first answer, or at any time
    after its first call if no answer came.
    """

    session_id: str
    key: str
    seq: int
    start: float
    end: float


def check_presence(facts: Facts) -> list[str]:
    """Compare each answer with the rows, and with the texts of the entries."""
    found = []
    stored = {(row["session_id"], row["request_id"]): row for row in facts.rows("appends")}
    calls_by_key = _by_key(facts.of("append"))
    contended = {session_id for session_id, _ in calls_by_key}
    texts = {
        (row["session_id"], row["seq"]): text_of(row)
        for row in facts.rows("entries")
        if row["session_id"] in contended
    }
    counts = Counter((session_id, text) for (session_id, _), text in texts.items())
    for (session_id, key), calls in calls_by_key.items():
        row, text = stored.get((session_id, key)), calls[0].given["text"]
        seqs = {call.got["seq"] for call in calls if call.is_ok}
        found += [
            f"append {key} of {session_id} was accepted at {seq}, and is not there"
            for seq in seqs
            if row is None or row["first_seq"] != seq or texts.get((session_id, seq)) != text
        ]
        count = counts[(session_id, text)]
        if count > 1:
            found.append(f"append {key} of {session_id} is {count} times in the transcript")
        is_there = row is not None or count
        if is_there and all(call.outcome is Outcome.REFUSED for call in calls):
            found.append(f"append {key} of {session_id} was refused, and is there")
    return found


def check_order(facts: Facts) -> list[str]:
    """Look for an append that ended before another began, and comes after it."""
    by_session: dict[str, list[Append]] = defaultdict(list)
    for append in _stored(facts):
        by_session[append.session_id].append(append)
    return [line for appends in by_session.values() for line in _inverted(appends)]


def _stored(facts: Facts) -> list[Append]:
    """Return one append for each key that was answered or is stored."""
    seqs = {(row["session_id"], row["request_id"]): row["first_seq"] for row in facts.rows("appends")}
    found = []
    for (session_id, key), repeats in _by_key(facts.of("append")).items():
        answers = [call for call in repeats if call.is_ok]
        seq = answers[0].got["seq"] if answers else seqs.get((session_id, key))
        if seq is not None:
            start = min(call.start for call in repeats)
            end = min((call.end for call in answers), default=inf)
            found.append(Append(session_id, key, seq, start, end))
    return found


def _by_key(calls: list[Call]) -> dict[Key, list[Call]]:
    found: dict[Key, list[Call]] = defaultdict(list)
    for call in calls:
        found[(call.given["session_id"], call.given["key"])].append(call)
    return found


def _inverted(appends: list[Append]) -> list[str]:
    """Walk from the newest entry to the oldest, with the append that ended first so far."""
    found = []
    earliest: Append | None = None
    for append in sorted(appends, key=lambda append: append.seq, reverse=True):
        if earliest is not None and earliest.end < append.start:
            found.append(
                f"{earliest.key} ended before {append.key} began,"
                f" and has the seq {earliest.seq} > {append.seq}"
            )
        if earliest is None or append.end < earliest.end:
            earliest = append
    return found
