"""Claims are exclusive: epochs rise, each has one holder, and a lost claim writes nothing."""

from collections import Counter, defaultdict

from tests.chaos.random_faults.facts import Facts
from tests.chaos.random_faults.history import Call


def check_writers(facts: Facts) -> list[str]:
    """Check the stored entries of each transcript, and the appends after a takeover."""
    found = []
    holders: dict[tuple[str, int], set[str]] = defaultdict(set)
    newest: dict[str, int] = defaultdict(int)
    for row in facts.rows("entries"):
        session_id, epoch = row["session_id"], row["writer_epoch"]
        if not row["writer_run_id"]:
            continue
        holders[(session_id, epoch)].add(row["writer_run_id"])
        if epoch < newest[session_id]:
            found.append(
                f"entry {row['seq']} of {session_id} has the epoch {epoch} after {newest[session_id]}"
            )
        newest[session_id] = max(newest[session_id], epoch)
    acquired: dict[str, list[Call]] = defaultdict(list)
    for call in facts.of("acquire"):
        if call.is_ok:
            acquired[call.given["session_id"]].append(call)
            holders[(call.given["session_id"], call.given["epoch"])].add(call.given["run_id"])
    found += [
        f"epoch {epoch} of {session_id} has the holders {sorted(runs)}"
        for (session_id, epoch), runs in holders.items()
        if len(runs) > 1
    ]
    found += [line for calls in acquired.values() for line in _shrinking(calls)]
    for call in facts.of("append"):
        if call.is_ok and not call.got["replayed"]:
            for claim in acquired[call.given["session_id"]]:
                if claim.end < call.start and claim.given["epoch"] > call.given["epoch"]:
                    found.append(
                        f"{call.given['key']} was accepted at epoch {call.given['epoch']}, after "
                        f"{claim.given['epoch']} was acquired"
                    )
    return found


def check_runs(facts: Facts) -> list[str]:
    """Check that no run was handed out twice at one epoch, and that the epochs rise.

    A harness records its claims in the history. A claim of any runner leaves an event of the
    session.
    """
    found = _shared_epochs(facts)
    handed: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for call in facts.of("claim"):
        for run_id, epoch in call.got.get("runs", []):
            handed[run_id].append((call.start, call.end, epoch))
    for run_id, claims in handed.items():
        epochs = [epoch for _, _, epoch in claims]
        if len(set(epochs)) < len(epochs):
            found.append(f"{run_id} was handed out twice at one of the epochs {epochs}")
        found += [
            f"{run_id} was handed out at epoch {later} after {earlier}"
            for _, end, earlier in claims
            for start, _, later in claims
            if end < start and later <= earlier
        ]
    return found


def _shared_epochs(facts: Facts) -> list[str]:
    """Return the runs that were claimed more often than their epochs allow."""
    claims = Counter(
        row["run_id"]
        for row in facts.rows("events")
        if row["kind"] == "RUN" and row["detail"].startswith("attempt ")
    )
    return [
        f"{run['run_id']} was claimed {claims[run['run_id']]} times from epoch {run['first_epoch']}"
        f" to {run['epoch']}"
        for run in facts.rows("runs")
        if claims[run["run_id"]] > (run["epoch"] - run["first_epoch"] + 1 if run["epoch"] else 0)
    ]


def _shrinking(calls: list[Call]) -> list[str]:
    return [
        f"{later.given['session_id']} was acquired at epoch {later.given['epoch']} after "
        f"{earlier.given['epoch']}"
        for earlier in calls
        for later in calls
        if earlier.end < later.start
        and later.given["epoch"] <= earlier.given["epoch"]
        and later.given["run_id"] != earlier.given["run_id"]
    ]
