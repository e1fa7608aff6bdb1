"""Area `native_relay_stop`: `given.handlers` judge a stop of a harness, and `expect.merged` is what
the harness reads.
"""

import json
import uuid
from collections.abc import Mapping
from typing import Any

from spawnmesh.hook.v1 import native_stop_pb2 as pb

from spawnmesh_devstack.conformance.cases import REMARKS, BadCase, Case, CaseResult, object_of
from spawnmesh_devstack.conformance.compare import difference, shown
from spawnmesh_devstack.conformance.finalize_merge import one_line
from spawnmesh_devstack.conformance.hook_cases import handlers_of, open_hook_tenant
from spawnmesh_devstack.conformance.mesh import MeshAccess

_HARNESSES = {
    "claude-code": pb.NATIVE_HARNESS_CLAUDE_CODE,
    "claude": pb.NATIVE_HARNESS_CLAUDE_CODE,
    "codex": pb.NATIVE_HARNESS_CODEX,
}
_ACTIONS = ("continue", "revise", "finalize")
_EVENT = {"hook_event_name": "Stop", "session_id": "a-session", "stop_hook_active": False}


async def replay(mesh: MeshAccess, case: Case) -> CaseResult:
    """Expect `merged`: the object that the harness reads, or null, `{}` or an empty text for
    nothing; or its meaning in the words of the area `finalize_merge`: an object with an `action`,
    or the action alone.

    `given.harness` is `claude-code` or `codex`. `given.event` has the members that differ from a
    plain stop. `given.times` says how often the event comes in a row; the last answer counts.
    """
    given = object_of(case.given, "given", {"handlers", "harness", "event", "times", *REMARKS})
    harness = _HARNESSES.get(str(given.get("harness", "claude-code")))
    times = given.get("times", 1)
    if harness is None or not isinstance(times, int) or not 0 < times <= 10:
        raise BadCase("harness or times is none that the replay knows")
    event = json.dumps({**_EVENT, **object_of(given.get("event") or {}, "event")})
    async with open_hook_tenant(mesh, handlers_of(given.get("handlers"))) as tenant:
        output = ""
        for _ in range(times):
            request = pb.RelayNativeStopRequest(
                request_id=uuid.uuid4().hex, harness=harness, event_json=event
            )
            answer: pb.RelayNativeStopResponse = await tenant.as_client("RelayNativeStop", request)
            output = answer.output
        deliveries = await tenant.deliveries()
    came = one_line(json.loads(output)) if output else None
    expect = {name: one_line(value) for name, value in _expected(case.expect).items()}
    if isinstance(expect.get("merged"), dict) and "action" in expect["merged"]:
        return CaseResult(difference(expect, {"merged": _meaning(came or {}), "deliveries": deliveries}))
    if "merged" in expect and not expect["merged"]:
        return CaseResult("" if came is None else f"came {shown(came)}, expected nothing")
    return CaseResult(difference(expect, {"merged": came or {}, "deliveries": deliveries}))


def _meaning(came: Mapping[str, Any]) -> dict[str, Any]:
    if came.get("decision") == "block":
        return {"action": "revise", "reason": came.get("reason", "")}
    if came.get("continue") is False:
        return {"action": "finalize", "reason": one_line({"reason": came.get("stopReason", "")})["reason"]}
    return {"action": "continue"}


def _expected(expect: Any) -> dict[str, Any]:
    members = object_of(expect, "expect", {"merged", "deliveries", *REMARKS})
    kept = {name: value for name, value in members.items() if name not in REMARKS}
    if kept.get("merged") in _ACTIONS:
        kept["merged"] = {"action": kept["merged"]}
    if isinstance(kept.get("merged"), str) and kept["merged"]:
        try:
            kept["merged"] = json.loads(kept["merged"])
        except ValueError:
            raise BadCase("merged is text and no JSON") from None
    return kept
