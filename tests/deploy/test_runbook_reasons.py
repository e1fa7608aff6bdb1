"""The runbooks have a row for each reason with which a run fails or waits, and no other row.

The reasons come from the code of the runner, from the comments of the RPCs that it calls, and from
the session service.
"""

import re
from pathlib import Path

from spawnmesh.errors.v1 import reason_pb2
from spawnmesh_core.errors import TRANSIENT_FACT, MeshError, transient_fact
from spawnmesh_core.reasons import RUN_REASONS, Reason
from spawnmesh_core.status import STATUS_OF, Status
from spawnmesh_runner.domain.failure import find_delay
from spawnmesh_runner.domain.reasons import RUN_LOST

from tests.support.deploy.rendering import ROOT

RUNNER = ROOT / "services/runner/spawnmesh_runner"
# Tools are not among them: the model gets the refusal of a tool, and the run goes on. An outage at a
# tool delays the run instead.
LOOP = [file for part in ("loop", "clients", "domain") for file in sorted((RUNNER / part).rglob("*.py"))]
ANY_CALL_BELOW = reason_pb2.REASON_UNKNOWN_AGENT
"""Every RPC can be refused with the reasons below this number."""


def texts(files: list[Path]) -> str:
    return "\n".join(file.read_text() for file in files)


def called_rpcs() -> set[str]:
    """Return the RPCs that the runner calls itself."""
    stubs = "runs|sessions|transcripts|files|compactions|models|attachments|hooks|run_hooks"
    return set(re.findall(rf"peers\.(?:{stubs})\.([A-Z]\w+)", texts(LOOP)))


def promised_reasons(rpcs: set[str]) -> set[str]:
    """Return the reasons that the comments of these RPCs name."""
    contracts = texts(sorted((ROOT / "protos").rglob("*.proto")))
    found = re.findall(r"((?:^ *//.*\n)+) *rpc (\w+)\(", contracts, re.MULTILINE)
    comments = {rpc: comment for comment, rpc in found}
    assert rpcs <= comments.keys()
    return {word for rpc in rpcs for word in re.findall(r"\b[A-Z_]{4,}\b", comments[rpc])} & set(Reason)


def reasons_of_a_failure() -> set[str]:
    of_any_call = {
        name.removeprefix("REASON_")
        for name, number in reason_pb2.Reason.items()
        if reason_pb2.REASON_UNSPECIFIED < number < ANY_CALL_BELOW
    }
    of_runner = set(re.findall(r"MeshError\(\s*Reason\.([A-Z_]+)", texts(LOOP)))
    # A delay that would end after the run's deadline fails the run.
    delays = reasons_of_a_delay() - {Reason.RUNNER_DISK_FULL.value}
    found = {
        *RUN_REASONS - {Reason.RUNNER_DISK_FULL},
        *of_any_call,
        *of_runner,
        *promised_reasons(called_rpcs()),
        *delays,
    }
    return {str(reason) for reason in found} - {str(reason) for reason in RUN_LOST}


def reasons_of_a_delay() -> set[str]:
    """Return the reasons that let a run wait, always or if the refusal says that it is transient."""
    errors = texts(sorted((ROOT / "services").rglob("domain/errors.py")))
    parts = [
        one for one in re.split(r"^(?:class|def) ", errors, flags=re.MULTILINE) if "TRANSIENT_FACT:" in one
    ]
    marked = {reason for one in parts for reason in re.findall(r"Reason\.([A-Z_]+),", one)}
    assert marked
    found = {Reason.RUNNER_DISK_FULL.value}
    for reason in STATUS_OF:
        facts = {TRANSIENT_FACT: transient_fact(True)} if reason in marked else {}
        # The status of SPAWN_FAILED is the one of its cause, here of an outage.
        status = Status.UNAVAILABLE if reason is Reason.SPAWN_FAILED else None
        error = MeshError(reason, "refused", status=status, facts=facts)
        if find_delay(error, seconds_left=60.0) is not None:
            found.add(reason.value)
    return found


def rows(page: str) -> list[str]:
    """Return the reasons in the first column of the page's table, each as often as it is there."""
    text = (ROOT / "docs/runbooks" / page).read_text()
    cells = re.findall(r"^\| (`[A-Z_]+`(?:, `[A-Z_]+`)*) \|", text, re.MULTILINE)
    return [reason for cell in cells for reason in re.findall(r"[A-Z_]+", cell)]


def test_the_runner_calls_what_this_test_reads() -> None:
    assert {"Generate", "FinalizeRun", "AppendEntries", "ReadFile", "ClaimRuns"} <= called_rpcs()


def test_each_reason_of_a_failure_has_one_row() -> None:
    assert sorted(rows("runs-fail.md")) == sorted(reasons_of_a_failure())


def test_each_reason_of_a_delay_has_one_row() -> None:
    assert sorted(rows("runs-wait.md")) == sorted(reasons_of_a_delay())
