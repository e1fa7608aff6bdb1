"""The outcome of the demo as one JSON document, and the checks that it must pass."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spawnmesh.hook.v1 import delivery_pb2 as delivery_pb
from spawnmesh.session.v1 import approval_pb2, session_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_calls.wire_reasons import reason_of
from spawnmesh_core.spans import Span

from spawnmesh_devstack import traces
from spawnmesh_devstack.demo_budget import FIRST_CALLS, change_count, wait_count
from spawnmesh_devstack.demo_evidence import DEPLOYABLES, Leftovers, attempts
from spawnmesh_devstack.demo_files import Truth, hashes
from spawnmesh_devstack.demo_job import Done
from spawnmesh_devstack.demo_published import tool_files
from spawnmesh_devstack.scripted_agents import BRIEF_NAME, FIGURES_NAME, VERIFIED

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One condition. If it is not `required`, it depends on the quality of a real model and is
    reported only.
    """

    name: str
    passed: bool
    required: bool = True


def document(
    done: Done,
    deliveries: Sequence[delivery_pb.Delivery],
    spans: Sequence[Span],
    kept: Leftovers | None,
    left: Leftovers | None,
    *,
    model: str,
) -> Document:
    """Return the document without `checks` and `seconds`.

    `kept` is what was left before the sessions were deleted, and `left` after it. Both are None if
    the sessions stay.
    """
    return {
        "model": model,
        "receipt": receipt_of(done.parent),
        "answer": done.parent.latest_run.result_text,
        "sessions": [_session(session) for session in done.sessions],
        "attempts": attempts(spans),
        "revisions": [
            {"session_id": one.session_id, "plugin": one.plugin, "milliseconds": one.latency.ToMilliseconds()}
            for one in deliveries
            if one.decision == delivery_pb.DELIVERY_DECISION_REVISE
        ],
        "approvals": [
            {
                "session_id": one.session_id,
                "tool": one.tool_call.tool_name,
                "state": approval_pb2.ApprovalState.Name(one.state).removeprefix("APPROVAL_STATE_"),
                "decided_by": one.decided_by,
                "seconds": round(
                    (one.decide_time.ToMilliseconds() - one.create_time.ToMilliseconds()) / 1000, 2
                ),
            }
            for one in done.approvals
        ],
        "budget": _budget(done),
        "live": {
            "sessions": len(done.heard),
            "pieces": sum(one.piece_count for one in done.heard.values()),
            "entries": sum(len(one.entries) for one in done.heard.values()),
            "retracted": sum(one.retracted_count for one in done.heard.values()),
            "exact": done.heard.keys() == done.transcripts.keys()
            and all(one.is_exactly(done.transcripts[key]) for key, one in done.heard.items()),
        },
        "announced": [
            {
                "parent_session_id": parent_id,
                "child_session_id": event.child_session_id,
                "run_id": event.run_id,
                "run_state": _state(event.run_state),
            }
            for parent_id, events in done.events.items()
            for event in events
            if event.kind == session_pb2.SESSION_EVENT_KIND_CHILD_ANNOUNCED
        ],
        "heard_ends": [
            one.session_id for one in deliveries if one.decision == delivery_pb.DELIVERY_DECISION_TOLD
        ],
        "published": list(_published(done)),
        "redacted": list(redactions(done)),
        "trace": {
            "trace_id": done.parent.trace_id,
            "services": traces.services(spans),
            "spans": len(spans),
            "edges": [list(edge) for edge in traces.edges(spans)],
            "orphan_spans": len(traces.orphans(spans)),
        },
        "kept": kept.counts if kept else None,
        "leftovers": left.counts if left else None,
    }


def redactions(done: Done) -> Iterator[dict[str, Any]]:
    """Return the markers that replace file contents in the spawn calls of the transcripts."""
    for entries in done.transcripts.values():
        for entry in entries:
            for attachment in _handed_over(entry):
                if isinstance(content := attachment.get("content"), dict) and "$redacted" in content:
                    yield {"name": attachment["name"], **content}


def _budget(done: Done) -> dict[str, Any] | None:
    """Return what the budget has counted beside what the runs have reported; None without one."""
    if done.budget is None:
        return None
    limits, used = done.budget.budget, done.budget.usage
    usages = [session.latest_run.usage for session in done.sessions]
    events = done.events[done.parent.session_id]
    return {
        "waits": wait_count(events),
        "changes": change_count(events),
        "changed_by": done.budget.updated_by,
        "first_calls": FIRST_CALLS,
        "max_calls": limits.max_model_call_count,
        "calls": used.model_call_count,
        "tokens": used.token_count,
        "cost": used.cost_micros / 1e6,
        "tokens_of_runs": sum(one.input_token_count + one.output_token_count for one in usages),
        "cost_of_runs": sum(one.cost_micros for one in usages) / 1e6,
    }


def _published(done: Done) -> Iterator[dict[str, Any]]:
    """Return each published file, and whether its bytes are those that its run wrote, that the
    parent fetched, and that a client read.
    """
    parents = {session.session_id: session.parent_session_id for session in done.sessions}
    for file in done.published:
        written = tool_files(done.transcripts[file.session_id], "write_file")
        fetched = tool_files(done.transcripts.get(parents[file.session_id], ()), "fetch_files")
        yield {
            "session_id": file.session_id,
            "set_id": file.set_id,
            "name": file.name,
            "bytes": file.size_bytes,
            "sha256": file.sha256,
            "written": any(one["sha256"] == file.sha256 for one in written),
            "fetched": (file.set_id, file.sha256) in [(one["set_id"], one["sha256"]) for one in fetched],
            "read": file.read_sha256 == file.sha256,
        }


def story_checks(report: Document, directory: Path, truth: Truth, *, scripted: bool) -> list[Check]:
    """Check the story: the facts of the files, one failover, one revision, each result announced
    once.
    """
    answer = report["answer"].splitlines()
    states = [session["run_state"] for session in report["sessions"]]
    children = [session["session_id"] for session in report["sessions"] if session["parent_session_id"]]
    told = [announced["child_session_id"] for announced in report["announced"]]
    failed = [one for one in report["attempts"] if one["reason"]]
    trouble = report["sessions"][0]["error_reason"]
    return [
        Check("the receipt names the files' own hashes", _receipt_is_true(report["receipt"], directory)),
        Check("the coordinator answered" + (f" ({trouble})" if trouble else ""), states[0] == "SUCCEEDED"),
        Check("a child and a grandchild worked for it", states == ["SUCCEEDED"] * 3, scripted),
        Check("the answer has the picture's SHA-256", truth.picture_sha256 in report["answer"], scripted),
        Check(
            "the answer has the sum of the table", f"sum of amount: {truth.sum_of_amount}" in answer, scripted
        ),
        Check("the answer has the number of lines", f"lines: {truth.line_count}" in answer, scripted),
        Check(
            "one model was over its limit and the next answered",
            bool(failed) and len(failed) < len(report["attempts"]),
        ),
        Check("a hook had the answer revised once", len(report["revisions"]) == 1, scripted),
        Check("the revised answer is verified", VERIFIED in answer, scripted),
        Check(
            "a person approved what the analyst spawned",
            [(one["tool"], one["state"]) for one in report["approvals"]] == [("sessions_spawn", "APPROVED")],
            scripted,
        ),
        Check("the family waited for its budget until a person raised it", _was_raised(report["budget"])),
        Check("the budget counted what the runs have used", _is_counted(report["budget"])),
        Check(
            "a watcher heard the text of each session as it is stored",
            report["live"]["exact"] and report["live"]["pieces"] > 0,
        ),
        Check(
            "the child published its figures, and its parent fetched and a client read the same bytes",
            [(one["name"], one["written"], one["fetched"], one["read"]) for one in report["published"]]
            == [(FIGURES_NAME, True, True, True)],
            scripted,
        ),
        *_kept_checks(report),
        Check("each child's result came to its parent once", sorted(told) == sorted(children)),
        Check("the plugin heard of each child's end", set(children) <= set(report["heard_ends"])),
        Check("the handed-over content is redacted", _is_redacted(report), scripted),
    ]


def _was_raised(budget: Mapping[str, Any]) -> bool:
    return (budget["waits"], budget["changes"]) == (1, 1) and budget["calls"] > budget["first_calls"]


def _is_counted(budget: Mapping[str, Any]) -> bool:
    """Return whether the budget has all that the runs have reported. It can have more: a runner
    does not report a call that it has abandoned.
    """
    return (
        all(budget[name] >= budget[f"{name}_of_runs"] for name in ("tokens", "cost")) and budget["tokens"] > 0
    )


def common_checks(report: Document) -> list[Check]:
    """Check that the trace is complete and that nothing is left."""
    trace = report["trace"]
    missing = sorted(set(DEPLOYABLES) - set(trace["services"]))
    return [
        Check(
            "one trace shows every service" + (f" (missing: {', '.join(missing)})" if missing else ""),
            not missing,
        ),
        Check("no span lacks its parent", trace["orphan_spans"] == 0),
        *_left_checks(report),
    ]


def _kept_checks(report: Document) -> Iterator[Check]:
    if report["kept"] is not None:
        count = len({one["sha256"] for one in report["published"]})
        is_right = report["kept"]["objects"] == count
        yield Check("of the files, only the published ones outlived the runs", is_right)


def _left_checks(report: Document) -> Iterator[Check]:
    if report["leftovers"] is not None:
        left = [f"{count} {what}" for what, count in report["leftovers"].items() if count]
        yield Check("nothing is left behind" + (f" ({', '.join(left)})" if left else ""), not left)


def with_checks(report: Document, checks: Sequence[Check], seconds: float) -> Document:
    """Return the complete document."""
    return {**report, "checks": [asdict(check) for check in checks], "seconds": round(seconds, 1)}


def receipt_of(session: session_pb2.Session) -> Document:
    """Return the receipt that the client got at the spawn."""
    receipt = session.receipt
    return {
        "session_id": session.session_id,
        "run_id": session.latest_run.run_id,
        "task_hash": session.task_hash,
        "trace_id": session.trace_id,
        "count": receipt.count,
        "total_bytes": receipt.total_bytes,
        "files": [
            {"name": file.name, "bytes": file.size_bytes, "sha256": file.sha256} for file in receipt.files
        ],
        "rel_dir": receipt.rel_dir,
        "mount_path": receipt.mount_path,
    }


def _session(session: session_pb2.Session) -> Document:
    run = session.latest_run
    return {
        "session_id": session.session_id,
        "parent_session_id": session.parent_session_id,
        "agent_id": session.agent_id,
        "label": session.label,
        "depth": session.depth,
        "state": session_pb2.SessionState.Name(session.state).removeprefix("SESSION_STATE_"),
        "run_id": run.run_id,
        "run_state": _state(run.state),
        "error_reason": reason_of(run.error_reason) or "",
        "result_text": run.result_text,
        "revision_count": run.revision_count,
        "attachments": [{"name": file.name, "sha256": file.sha256} for file in session.receipt.files],
        "input_tokens": run.usage.input_token_count,
        "output_tokens": run.usage.output_token_count,
        "seconds": round((run.end_time.ToMilliseconds() - run.queue_time.ToMilliseconds()) / 1000, 2),
    }


def _state(state: session_pb2.RunState.ValueType) -> str:
    return session_pb2.RunState.Name(state).removeprefix("RUN_STATE_")


def _handed_over(entry: entry_pb2.Entry) -> Iterator[Mapping[str, Any]]:
    for block in entry.body.message.content:
        if block.tool_call.name == "sessions_spawn":
            call = json.loads(block.tool_call.block_json)
            arguments = call.get("arguments", call.get("input", {}))
            yield from (json.loads(arguments) if isinstance(arguments, str) else arguments).get(
                "attachments", ()
            )


def _receipt_is_true(receipt: Document, directory: Path) -> bool:
    files = {file["name"]: file["sha256"] for file in receipt["files"]}
    return files == hashes(directory)


def _is_redacted(report: Document) -> bool:
    """Return whether the marker in the parent's transcript has the hash of the child's file."""
    stored = {
        file["sha256"]
        for session in report["sessions"]
        for file in session["attachments"]
        if file["name"] == BRIEF_NAME
    }
    return bool(stored) and stored == {marker["sha256"] for marker in report["redacted"]}
