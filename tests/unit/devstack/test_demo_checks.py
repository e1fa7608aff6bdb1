"""The demo's checks: all pass on a good outcome, and each notices what it is there for."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_devstack.demo_document import common_checks, story_checks
from spawnmesh_devstack.demo_evidence import DEPLOYABLES, Leftovers
from spawnmesh_devstack.demo_files import Truth, hashes, make_files

BRIEF = "ef" * 32
FIGURES = "ab" * 32


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Truth]:
    return tmp_path, make_files(tmp_path, seed=3)


@pytest.fixture
def report(files: tuple[Path, Truth]) -> dict[str, Any]:
    directory, truth = files
    sessions = [
        {
            "session_id": name,
            "parent_session_id": parent,
            "run_state": "SUCCEEDED",
            "error_reason": "",
            "attachments": [],
        }
        for name, parent in (("ses_1", ""), ("ses_2", "ses_1"), ("ses_3", "ses_2"))
    ]
    sessions[1]["attachments"] = [{"name": "brief.md", "sha256": BRIEF}]
    lines = (f"sum of amount: {truth.sum_of_amount}", f"lines: {truth.line_count}", truth.picture_sha256)
    return {
        "receipt": {
            "files": [{"name": name, "sha256": digest} for name, digest in hashes(directory).items()]
        },
        "answer": "\n".join((*lines, "verified: yes")),
        "sessions": sessions,
        "attempts": [{"reason": "RATE_LIMIT"}, {"reason": ""}],
        "revisions": [{"session_id": "ses_1"}],
        "approvals": [{"tool": "sessions_spawn", "state": "APPROVED"}],
        "budget": {
            "waits": 1,
            "changes": 1,
            "first_calls": 1,
            "calls": 9,
            "tokens": 700,
            "cost": 0.5,
            "tokens_of_runs": 700,
            "cost_of_runs": 0.5,
        },
        "live": {"pieces": 3, "entries": 9, "retracted": 0, "exact": True},
        "announced": [{"child_session_id": "ses_2"}, {"child_session_id": "ses_3"}],
        "heard_ends": ["ses_3", "ses_2", "ses_1"],
        "published": [
            {"name": "figures.txt", "sha256": FIGURES, "written": True, "fetched": True, "read": True}
        ],
        "kept": {"objects": 1},
        "redacted": [{"name": "brief.md", "sha256": BRIEF}],
        "trace": {"services": list(DEPLOYABLES), "orphan_spans": 0},
        "leftovers": {"objects": 0, "rows": 0, "workspaces": 0, "processes": 0},
    }


def failed(report: dict[str, Any], files: tuple[Path, Truth], *, scripted: bool = True) -> list[str]:
    directory, truth = files
    checks = [*story_checks(report, directory, truth, scripted=scripted), *common_checks(report)]
    return [check.name for check in checks if check.required and not check.passed]


def test_good_outcome_passes(report, files):
    assert failed(report, files) == []


@pytest.mark.parametrize(
    ("place", "value", "noticed"),
    [
        (("receipt", "files"), [], "the receipt names"),
        (("sessions", 0, "run_state"), "FAILED", "the coordinator answered"),
        (("sessions", 2, "run_state"), "KILLED", "a child and a grandchild"),
        (("attempts", 0, "reason"), "", "one model was over"),
        (("attempts", 1, "reason"), "TIMEOUT", "one model was over"),
        (("revisions",), [], "a hook had the answer revised once"),
        (("revisions",), [{}, {}], "a hook had the answer revised once"),
        (("approvals",), [], "a person approved what"),
        (("approvals", 0, "state"), "PENDING", "a person approved what"),
        (("budget", "waits"), 0, "the family waited for its budget"),
        (("budget", "changes"), 2, "the family waited for its budget"),
        (("budget", "calls"), 1, "the family waited for its budget"),
        (("budget", "tokens"), 699, "the budget counted"),
        (("budget", "cost"), 0.4, "the budget counted"),
        (("live", "exact"), False, "a watcher heard"),
        (("live", "pieces"), 0, "a watcher heard"),
        (("announced",), [{"child_session_id": "ses_2"}], "each child's result"),
        (("announced",), [{"child_session_id": f"ses_{n}"} for n in (2, 3, 3)], "each child's result"),
        (("heard_ends",), ["ses_1", "ses_2"], "the plugin heard"),
        (("published",), [], "the child published"),
        (("published", 0, "name"), "other.txt", "the child published"),
        (("published", 0, "written"), False, "the child published"),
        (("published", 0, "fetched"), False, "the child published"),
        (("published", 0, "read"), False, "the child published"),
        (("kept", "objects"), 0, "of the files, only the published ones"),
        (("kept", "objects"), 2, "of the files, only the published ones"),
        (("redacted",), [], "the handed-over content"),
        (("redacted", 0, "sha256"), "00" * 32, "the handed-over content"),
        (("trace", "services"), ["session"], "one trace shows every service (missing: attachment-blob, hook"),
        (("trace", "orphan_spans"), 1, "no span lacks"),
        (("leftovers", "objects"), 2, "nothing is left behind (2 objects)"),
    ],
)
def test_each_flaw_is_noticed(report, files, place, value, noticed):
    flawed = deepcopy(report)
    at = flawed
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value

    assert any(name.startswith(noticed) for name in failed(flawed, files))


@pytest.mark.parametrize("line", range(4))
def test_answer_that_lacks_a_line_is_noticed(report, files, line):
    lines = report["answer"].splitlines()
    wanting = {**report, "answer": "\n".join(lines[:line] + lines[line + 1 :])}

    assert len(failed(wanting, files)) == 1
    assert failed(wanting, files, scripted=False) == [], "what a real model makes of it is told, not judged"


@pytest.mark.parametrize(
    ("objects", "rows", "workspaces", "kept_files", "expected"),
    [
        ([], {"attachment_blob.sets": 0, "session.jobs": 0}, [], 0, True),
        (["a"], {"attachment_blob.sets": 1, "session.jobs": 0}, [], 1, True),
        (["a"], {"attachment_blob.sets": 1, "session.jobs": 0}, [], 0, False),
        ([], {"attachment_blob.sets": 1, "session.jobs": 0}, [], 0, False),
        (["a", "b"], {"attachment_blob.sets": 1, "session.jobs": 0}, [], 1, False),
        ([], {"attachment_blob.sets": 0, "session.jobs": 0}, [], 1, False),
        (["a"], {"attachment_blob.sets": 1, "session.jobs": 1}, [], 1, False),
        (["a"], {"attachment_blob.sets": 1, "session.jobs": 0}, ["run_1"], 1, False),
    ],
)
def test_published_files_alone_may_be_left_while_their_session_is_there(
    objects, rows, workspaces, kept_files, expected
):
    assert Leftovers(objects, rows, workspaces).has_only_files(kept_files) is expected


def test_without_a_deletion_nothing_is_judged_that_would_be_left(report, files):
    report["kept"] = report["leftovers"] = None
    directory, truth = files
    checks = [*story_checks(report, directory, truth, scripted=True), *common_checks(report)]
    assert failed(report, files) == []
    assert not [check.name for check in checks if "left behind" in check.name or "outlived" in check.name]
