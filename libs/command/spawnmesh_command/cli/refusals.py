"""Messages of refused commands, for people and for programs."""

import json
import sys

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_command.cli.show import plain
from spawnmesh_command.endpoints import LocalRefusal

_HIDDEN_FACTS = ("dependency", "resource", "id")  # The message names them already.
_RENEW = "make another with `spawnmesh token` and set SPAWNMESH_TOKEN to it"
_SMALLER = "send fewer or smaller files, or have the tenant's limits raised"
_ADVICE = {
    Reason.DEPENDENCY_UNAVAILABLE: "`spawnmesh doctor` shows what is down; `spawnmesh up` starts a mesh here",
    Reason.DRAINING: "try again",
    Reason.DEADLINE_EXCEEDED: "`spawnmesh doctor` shows what is slow or down",
    Reason.TOKEN_INVALID: _RENEW,
    Reason.TOKEN_EXPIRED: _RENEW,
    Reason.TOKEN_REVOKED: _RENEW,
    Reason.TOKEN_LIFETIME_EXCEEDED: "make one with a shorter life with `spawnmesh token --hours`",
    Reason.ROLE_MISSING: "an operator of the tenant can do it, or `spawnmesh token --role` makes a token",
    Reason.CALLER_NOT_ALLOWED: (
        "an operator's commands take a token of `spawnmesh token --admin`, all others a tenant's"
    ),
    Reason.UNKNOWN_TENANT: "create it with `spawnmesh tenant create`",
    Reason.UNKNOWN_MODEL: "`spawnmesh router models` lists what there is",
    Reason.UNKNOWN_AGENT: "`spawnmesh agent list` lists what there is; the agent `default` is always there",
    Reason.REQUEST_ID_REUSED: "leave out --request-id, or repeat the first call as it was",
    Reason.IMPORT_CONTENT_DIFFERS: "leave out --session-id to import the file as a transcript of its own",
    Reason.SPAWN_IN_PROGRESS: "try again with the same --request-id",
    Reason.CHILDREN_LIMIT_EXCEEDED: "wait until a child has ended, or end one with `spawnmesh kill`",
    Reason.RUN_QUEUE_FULL: "try again when runs have ended",
    Reason.POOL_EXHAUSTED: "try again",
    Reason.RATE_LIMITED: "wait, or have the limit raised with `spawnmesh tenant update --set call_limits.…`",
    Reason.CONFLICT: "try again",
    Reason.SESSION_BUDGET_EXCEEDED: "raise it with `spawnmesh budget SESSION_ID --set …`",
    Reason.BUDGET_BELOW_USAGE: "`spawnmesh budget SESSION_ID` shows what is used",
    Reason.BUDGET_MISSING: "spawn another one with --budget",
    Reason.ENDPOINT_NOT_REACHED: "with --allow-unreachable, an address at which nothing answers is accepted",
    Reason.WEBHOOK_COUNT_EXCEEDED: "`spawnmesh webhook list` lists them",
    Reason.SCHEDULE_COUNT_EXCEEDED: "`spawnmesh schedule list` lists them",
    Reason.SESSION_CLOSED: "spawn another one; with --open it takes messages after its first run",
    Reason.ATTACHMENTS_FILE_COUNT_EXCEEDED: _SMALLER,
    Reason.ATTACHMENTS_FILE_BYTES_EXCEEDED: _SMALLER,
    Reason.ATTACHMENTS_TOTAL_BYTES_EXCEEDED: _SMALLER,
    Reason.ATTACHMENTS_INVALID_BASE64_OR_TOO_LARGE: _SMALLER,
    Reason.MESSAGE_TOO_LARGE: _SMALLER,
    Reason.PROCESSING_TIME_EXCEEDED: "send it in smaller parts",
    Reason.ATTACHMENTS_INVALID_NAME: "rename the file",
    Reason.ATTACHMENTS_DUPLICATE_NAME: (
        "rename one of the files, or give it another name with `--attach-from SET_ID/NAME:NEW_NAME`"
    ),
    Reason.ATTACHMENT_SET_STATE: (
        "its files are gone: its session ended or was deleted, or the tenant's `retention` is over"
    ),
    Reason.INTERNAL: "tell the operator the trace id",
}

_ADVICE_FOR_FIELDS = {
    "schedule.cron": "for example, '0 9 * * 1-5' is due at 9:00 on weekdays",
    "schedule.time_zone": "for example, Europe/Berlin is one",
}
_LISTED_BY = {
    "session": "sessions",
    "transcript": "sessions",
    "tenant": "tenant list",
    "plugin": "hooks list",
    "webhook": "webhook list",
    "schedule": "schedule list",
    "approval": "approvals list --all",
    "attachment set": "attachments list",
    "model, credential or provider": "router health",
}
"""The command that lists resources of a kind, by their name in refusals."""


def report(error: MeshError, *, as_json: bool) -> None:
    """Print one line to standard error; with `as_json` one document to standard output."""
    if as_json:
        body = {"reason": error.reason.value, "message": error.message, "facts": error.facts}
        print(json.dumps({"error": body}))
        return
    facts = ", ".join(
        f"{key}={value}" for key, value in sorted(error.facts.items()) if key not in _HIDDEN_FACTS
    )
    violations = [
        f"{item.field}: {item.description}" for item in error.violations[1:]
    ]  # The message has the first one.
    parts = [f"{error.reason}: {error.message}", *violations]
    line = "; ".join(parts) + (f" ({facts})" if facts else "")
    advice = _advice(error)
    print_error(line + (f". {advice}" if advice else ""))


def _advice(error: MeshError) -> str:
    if isinstance(error, LocalRefusal):
        return ""
    if Reason.NOT_FOUND not in (error.reason, error.facts.get("cause")):
        fields = [item.field for item in error.violations if item.field in _ADVICE_FOR_FIELDS]
        return _ADVICE_FOR_FIELDS[fields[0]] if fields else _ADVICE.get(error.reason, "")
    kind, identifier = error.facts.get("resource", ""), error.facts.get("id", "")
    if kind == "file of that name in attachment set":
        return f"`spawnmesh attachments show {identifier}` lists what there is"
    return f"`spawnmesh {_LISTED_BY[kind]}` lists what there is" if kind in _LISTED_BY else ""


def print_error(text: str) -> None:
    """Print one line to standard error."""
    print(f"error: {plain(text, keep='')}", file=sys.stderr)
