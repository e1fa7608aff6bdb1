"""Published files: each accepted call is one output set, told once, counted, and stored."""

from collections import Counter
from collections.abc import Iterator

from tests.chaos.random_faults.facts import Facts, Row


def check(facts: Facts) -> list[str]:
    """Compare the output sets with the calls, the events, the runs, and the sets of attachment-blob."""
    published = [row for row in facts.rows("output_sets") if row["position"] is not None]
    return [*_lost(facts, published), *_badly_told(facts, published), *_badly_counted(facts, published)] + [
        problem for row in published for problem in _badly_stored(facts, row)
    ]


def _lost(facts: Facts, published: list[Row]) -> Iterator[str]:
    kept = {row["run_id"] for row in published}
    runs = {row["run_id"] for row in facts.rows("runs")}
    for call in facts.of("harness"):
        run_id = call.given.get("run_id")
        if call.is_ok and call.given.get("method") == "PublishFiles" and run_id in runs - kept:
            yield f"{run_id} published files at {call.end:.1f} s, and has no output set"


def _badly_told(facts: Facts, published: list[Row]) -> Iterator[str]:
    told = Counter(row["set_id"] for row in facts.rows("events") if row["kind"] == "FILES_PUBLISHED")
    for row in published:
        if told.pop(row["set_id"], 0) != 1:
            yield f"output set {row['set_id']} was not told by one event"
    yield from (f"an event tells of {set_id}, which is no output set" for set_id in told)


def _badly_counted(facts: Facts, published: list[Row]) -> Iterator[str]:
    files, sizes = Counter[str](), Counter[str]()
    for row in published:
        files[row["run_id"]] += len(row["files"])
        sizes[row["run_id"]] += sum(file["size_bytes"] for file in row["files"])
    for run in facts.rows("runs"):
        counted = (run["output_file_count"], run["output_total_bytes"])
        if counted != (files[run["run_id"]], sizes[run["run_id"]]):
            yield f"{run['run_id']} counts {counted}, and its output sets have another number"


def _badly_stored(facts: Facts, row: Row) -> Iterator[str]:
    of_set = [one for one in facts.rows("sets") if one["set_id"] == row["set_id"]]
    if [one["state"] for one in of_set] != ["ATTACHED"]:
        yield f"output set {row['set_id']} is {[one['state'] for one in of_set]}"
    stored = {
        (file["name"], file["size_bytes"], file["sha256"])
        for file in facts.rows("set_files")
        if file["set_id"] == row["set_id"]
    }
    if stored != {(file["name"], file["size_bytes"], file["sha256"]) for file in row["files"]}:
        yield f"output set {row['set_id']} has other files than are stored"
