"""The shape of each refusal: `google.rpc.Status`, with its details as typed objects."""

from collections.abc import Iterator

from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import STATUS_OF, Status

from spawnmesh_gateway.typed import Json

_TYPE = "type.googleapis.com/google.rpc."
# As Envoy turns a status of gRPC into one of HTTP. 404 is also the gateway's UNKNOWN_RPC.
HTTP_STATUS = {
    Status.INVALID_ARGUMENT: 400,
    Status.FAILED_PRECONDITION: 400,
    Status.UNAUTHENTICATED: 401,
    Status.PERMISSION_DENIED: 403,
    Status.NOT_FOUND: 404,
    Status.UNIMPLEMENTED: 404,
    Status.ALREADY_EXISTS: 409,
    Status.ABORTED: 409,
    Status.RESOURCE_EXHAUSTED: 429,
    Status.CANCELLED: 499,
    Status.INTERNAL: 500,
    Status.DATA_LOSS: 500,
    Status.UNAVAILABLE: 503,
    Status.DEADLINE_EXCEEDED: 504,
}
_ANY = "Refusal"
_CONTENT: Json = {"application/json": {"schema": {"$ref": "#/components/schemas/Status"}}}
_OF_THE_GATEWAY = {408: (Reason.DEADLINE_EXCEEDED,), 413: (Reason.MESSAGE_TOO_LARGE,)}


def error_schemas() -> Json:
    """Return the schemas of a refusal and of its details."""
    info = _detail(
        "ErrorInfo",
        "Branch on the reason, and never on the message.",
        reason={"type": "string", "enum": [reason.value for reason in Reason if reason in STATUS_OF]},
        domain={"type": "string", "description": "The service, such as `session.spawnmesh`."},
        metadata={"type": "object", "additionalProperties": {"type": "string"}},
    )
    retry = _detail(
        "RetryInfo",
        "When to call again.",
        retry_delay={"type": "string", "pattern": r"^[0-9]+(\.[0-9]{1,9})?s$"},
    )
    violation: Json = {
        "type": "object",
        "properties": {"field": {"type": "string"}, "description": {"type": "string"}},
    }
    bad = _detail(
        "BadRequest",
        "The fields that are malformed or out of bounds.",
        field_violations={"type": "array", "items": violation},
    )
    details = {"ErrorInfo": info, "RetryInfo": retry, "BadRequest": bad}
    references = [{"$ref": f"#/components/schemas/{name}"} for name in details]
    status: Json = {
        "type": "object",
        "required": ["code", "message"],
        "properties": {
            "code": {"type": "integer", "description": "The number of the gRPC status."},
            "message": {"type": "string", "description": "For people. It may change."},
            "details": {"type": "array", "items": {"anyOf": references}},
        },
    }
    return {"Status": status, **details}


def error_responses() -> Json:
    """Return a response for each status of HTTP, with the reasons that it can have."""
    of_status = sorted(_reasons_by_status().items())
    any_other: Json = {
        "description": "Any other refusal. Without `details` it is not from a service of the mesh.",
        "content": _CONTENT,
    }
    return {_ANY: any_other, **{_name(status): _response(reasons) for status, reasons in of_status}}


def responses_of_operation() -> Json:
    """Return the references to the refusals that any operation can have."""
    named = {str(status): _name(status) for status in sorted(_reasons_by_status())} | {"default": _ANY}
    return {status: {"$ref": f"#/components/responses/{name}"} for status, name in named.items()}


def _reasons_by_status() -> dict[int, list[Reason]]:
    found: dict[int, list[Reason]] = {status: list(reasons) for status, reasons in _OF_THE_GATEWAY.items()}
    for reason in Reason:
        if reason in STATUS_OF:
            found.setdefault(HTTP_STATUS[STATUS_OF[reason]], []).append(reason)
    return found


def _response(reasons: list[Reason]) -> Json:
    lines = "\n".join(f"- {reason.value}" for reason in _once(reasons))
    return {
        "description": f"The call is refused. The reasons:\n\n{lines}",
        "content": _CONTENT,
    }


def _once(reasons: list[Reason]) -> Iterator[Reason]:
    yield from dict.fromkeys(reasons)


def _name(status: int) -> str:
    return f"Refusal{status}"


def _detail(name: str, text: str, **properties: Json) -> Json:
    return {
        "type": "object",
        "description": text,
        "required": ["@type"],
        "properties": {"@type": {"const": f"{_TYPE}{name}"}, **properties},
    }
