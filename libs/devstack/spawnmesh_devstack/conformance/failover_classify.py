"""Area `failover_classify`: the router's `ClassifyError` judges a failed model call."""

from typing import Any

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub

from spawnmesh_devstack.conformance.cases import (
    REMARKS,
    BadCase,
    Case,
    CaseResult,
    list_of,
    object_of,
    text_of,
)
from spawnmesh_devstack.conformance.compare import difference, shown
from spawnmesh_devstack.conformance.mesh import MeshAccess, new_run

TENANT = "conformance-router"
CALL_SECONDS = 30.0

_FIELDS = {"status", "message", "code", "error_type", "provider", "details", "causes"}
_MOST_STATUS = 999


async def replay(mesh: MeshAccess, case: Case) -> CaseResult:
    """Expect `reason`, or any reason of the list `reason_in`. A status can be a string, and a code
    can be a number.
    """
    given = object_of(case.given, "given", {*_FIELDS, *REMARKS})
    request = pb.ClassifyErrorRequest(
        http_status=_status(given.get("status")),
        message=_text(given.get("message"), "message"),
        code=_text(given.get("code"), "code"),
        error_type=_text(given.get("error_type"), "error_type"),
        provider=_text(given.get("provider"), "provider"),
        details=_texts(given.get("details"), "details"),
        causes=_texts(given.get("causes"), "causes"),
    )
    peer = mesh.peers["model-router"]
    stub = ModelRouterServiceStub(peer.channel)
    with mesh.as_run(new_run(TENANT)):
        answer = await peer.unary(stub.ClassifyError, request, timeout_seconds=CALL_SECONDS)
    reason = generation_pb2.FailoverReason.Name(answer.reason).removeprefix("FAILOVER_REASON_")
    if isinstance(case.expect, dict) and set(case.expect) == {"reason_in"}:
        allowed = list_of(case.expect["reason_in"], "reason_in")
        problem = f"came {shown(reason)}, expected one of {shown(allowed)}"
        return CaseResult("" if reason in allowed else problem)
    return CaseResult(difference(case.expect, {"reason": reason}))


def _status(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not str(value).isdecimal() or int(value) > _MOST_STATUS:
        raise BadCase("status is no HTTP status")
    return int(value)


def _texts(value: Any, what: str) -> list[str]:
    return (
        []
        if value is None
        else [_text(item, f"{what}[{place}]") for place, item in enumerate(list_of(value, what))]
    )


def _text(value: Any, what: str) -> str:
    """Replace a lone surrogate, which no request can carry, by a question mark: no rule looks for
    either.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else text_of(value, what)
    return text.encode("utf-8", "replace").decode()
