"""Area `images_partial`: the router's `PlanRetry` says which images a retry carries and what the
model is told.

The wording for the model is the service's own. The replay compares whether there is a text, and
what it must mention.
"""

from collections.abc import Mapping
from typing import Any

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub

from spawnmesh_devstack.conformance.cases import BadCase, Case, CaseResult, list_of, object_of, text_of
from spawnmesh_devstack.conformance.compare import difference, shown
from spawnmesh_devstack.conformance.failover_classify import CALL_SECONDS, TENANT
from spawnmesh_devstack.conformance.mesh import MeshAccess, new_run

_SAYS = {"mentions", "mentions_messaging", "nonempty"}


async def replay(mesh: MeshAccess, case: Case) -> CaseResult:
    """Expect `images` and `suppressPromptImageDetection`, `names`, or `toolNames` and `didSend`;
    null for nothing done; or, for the text, `nonempty`, `mentions` and `mentions_messaging`.
    """
    outer = object_of(case.given, "given")
    if "given" in outer:
        outer = object_of(case.given, "given", ("given", "when", "case"))
    given = object_of(outer.get("given", outer), "given.given")
    peer = mesh.peers["model-router"]
    stub = ModelRouterServiceStub(peer.channel)
    with mesh.as_run(new_run(TENANT)):
        plan = await peer.unary(stub.PlanRetry, _request(given), timeout_seconds=CALL_SECONDS)
    if case.expect is None:
        # A case that names providers is about the text, every other case is about what was done.
        came = bool(plan.notice) if "provider" in given else _done(plan)
        return CaseResult(f"came {shown(_outcome(given, plan))}, expected null" if came else "")
    expect = object_of(case.expect, "expect")
    if _SAYS & set(expect):
        return CaseResult(_unsaid(expect, plan))
    return CaseResult(difference(expect, _outcome(given, plan)))


def _request(given: Mapping[str, Any]) -> pb.PlanRetryRequest:
    done = [*_attempts(given), *_own(given)]
    # In a case about the text, only the earlier work marks a retry.
    return pb.PlanRetryRequest(
        is_retry=bool(given.get("isFallbackRetry", bool(done))),
        previous_reason=_reason(given.get("previousFailureReason")),
        provider=text_of(given.get("provider"), "provider"),
        first_provider=text_of(given.get("primaryProvider"), "primaryProvider"),
        image_count=_count(given.get("images")),
        partial_executions=done,
    )


def _attempts(given: Mapping[str, Any]) -> list[generation_pb2.PartialExecution]:
    attempts = given.get("attempts")
    if attempts is None:
        return []
    return [
        _partial(attempt, f"attempts[{place}]") for place, attempt in enumerate(list_of(attempts, "attempts"))
    ]


def _own(given: Mapping[str, Any]) -> list[generation_pb2.PartialExecution]:
    if "names" in given:
        return [_partial({"toolNames": given["names"]}, "given")]
    return [_partial(given, "given")] if {"toolNames", "didSend"} & set(given) else []


def _partial(value: Any, what: str) -> generation_pb2.PartialExecution:
    if value is None:
        return generation_pb2.PartialExecution()
    partial = object_of(value, what)
    names = [
        text_of(name, f"{what}.toolNames")
        for name in list_of(partial.get("toolNames") or [], f"{what}.toolNames")
    ]
    sent = partial.get("didSend", False)
    return generation_pb2.PartialExecution(tool_names=names, sent_to_person=bool(sent))


def _reason(value: Any) -> generation_pb2.FailoverReason.ValueType:
    name = text_of(value, "previousFailureReason").upper()
    try:
        return generation_pb2.FailoverReason.Value(
            f"FAILOVER_REASON_{name}" if name else "FAILOVER_REASON_UNSPECIFIED"
        )
    except ValueError:
        raise BadCase("previousFailureReason is no reason of the contract") from None


def _count(value: Any) -> int:
    images = len(value) if isinstance(value, list) else 0 if value is None else value
    if isinstance(images, bool) or not isinstance(images, int) or images < 0:
        raise BadCase("images is neither a count nor a list")
    return images


def _outcome(given: Mapping[str, Any], plan: pb.PlanRetryResponse) -> dict[str, Any]:
    """Return the outcome in the members of an expectation. A first attempt has no earlier
    attempts.
    """
    names = list(plan.partial_execution.tool_names)
    partial = {"toolNames": names, "didSend": plan.partial_execution.sent_to_person} if _done(plan) else None
    return {
        "images": plan.image_count,
        "suppressPromptImageDetection": plan.prompt_image_detection_suppressed,
        "names": names,
        "toolNames": names,
        "didSend": plan.partial_execution.sent_to_person,
        "notice": plan.notice,
        "previousFailureReason": given.get("previousFailureReason"),
        "previousPartialExecution": partial,
    }


def _done(plan: pb.PlanRetryResponse) -> bool:
    return plan.HasField("partial_execution")


def _unsaid(expect: Mapping[str, Any], plan: pb.PlanRetryResponse) -> str:
    said = {
        "nonempty": bool(plan.notice),
        "mentions": [name for name in expect.get("mentions", ()) if str(name) in plan.notice],
        "mentions_messaging": "message" in plan.notice.lower(),
    }
    return difference({name: expect[name] for name in _SAYS & set(expect)}, said)
