"""Encode a refusal as `google.rpc.Status` in trailing metadata, and decode it."""

import re
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from spawnmesh_core.errors import FieldViolation, MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

DETAILS_KEY = "grpc-status-details-bin"
_DOMAIN_SUFFIX = ".spawnmesh"
# A client refuses more than 8 KiB of metadata as RESOURCE_EXHAUSTED, without the reason. In it,
# each byte of the message takes up to three, and the details take four for three.
_MESSAGE_MAX_BYTES = 1_000
_FACT_MAX_BYTES = 1_000
_DETAILS_MAX_BYTES = 2_500
_MAX_VIOLATIONS = 20
# The text of grpc if this end receives too large a message. No request is compressed.
_RECEIVED_TOO_MUCH = re.compile("(CLIENT: Received|Decompressed) message larger than max")
_OF_CODE: dict[str, tuple[Reason, str]] = {
    "CANCELLED": (Reason.CANCELLED, "{name} cancelled the call"),
    "DEADLINE_EXCEEDED": (Reason.DEADLINE_EXCEEDED, "{name} did not answer before the deadline"),
    "RESOURCE_EXHAUSTED": (Reason.POOL_EXHAUSTED, "{name} has too much to do; call again later"),
    "UNAUTHENTICATED": (Reason.TOKEN_INVALID, "{name} did not accept the credentials"),
    "PERMISSION_DENIED": (Reason.CALLER_NOT_ALLOWED, "{name} does not allow the call"),
    "UNAVAILABLE": (Reason.DEPENDENCY_UNAVAILABLE, "{name} does not answer; call again later"),
}
_OF_BARE = {
    "INVALID_ARGUMENT": Reason.INVALID_REQUEST,
    "NOT_FOUND": Reason.NOT_FOUND,
    "ALREADY_EXISTS": Reason.ALREADY_EXISTS,
    "ABORTED": Reason.CONFLICT,
}
"""Reasons of bare statuses, for a program outside of the mesh."""
_TOO_LARGE = (Reason.MESSAGE_TOO_LARGE, "a message to or from {name} is larger than the transport takes")
# RESOURCE_EXHAUSTED also tells of a peer that has too much to do, which passes. Only the texts of
# gRPC's implementations tell the two apart: those of C++, Python, Go and Node, of Java, of .NET,
# and of all for metadata.
_TOO_LARGE_TEXT = re.compile(r"larger than max|exceeds (the )?maximum|exceeds (soft|hard) limit")
_PASSING = (Reason.DEPENDENCY_UNAVAILABLE, Reason.POOL_EXHAUSTED)


def status_metadata(error: MeshError, domain: str) -> tuple[tuple[str, str | bytes], ...]:
    """Return the trailing metadata of the refusal, which is its `status_of`.

    Except for DRAINING, the metadata also tells the channel of the caller not to retry on its own:
    the caller decides when to retry a call that this process has answered.
    """
    packed = (DETAILS_KEY, status_of(error, domain).SerializeToString())
    if error.reason is Reason.DRAINING:
        return (packed,)
    return packed, ("grpc-retry-pushback-ms", "-1")


def status_of(error: MeshError, domain: str) -> status_pb2.Status:
    """Return the refusal as a status. An error of another service keeps its domain.

    Long texts are cut, so that any client accepts the status as metadata: the message and each fact
    to 1,000 bytes, all facts and violations to 2,500.
    """
    left = _DETAILS_MAX_BYTES
    info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain=error.domain or domain)
    for key, value in error.facts.items():
        info.metadata[key] = shortened(value, min(_FACT_MAX_BYTES, left))
        left = max(0, left - len(key) - len(info.metadata[key].encode()))
    details: list[Message] = [info]
    if error.retry_after_seconds is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(error.retry_after_seconds * 1e9))
        details.append(retry)
    if error.violations:
        bad = error_details_pb2.BadRequest()
        for violation in error.violations[:_MAX_VIOLATIONS]:
            bad.field_violations.add(field=violation.field, description=violation.description)
            if bad.ByteSize() > left:
                bad.field_violations.pop()
                break
        details.append(bad)
    status = status_pb2.Status(code=code_pb2.Code.Value(error.status.value), message=shortened(error.message))
    for detail in details:
        status.details.add().Pack(detail)
    return status


def shortened(text: str, max_bytes: int = _MESSAGE_MAX_BYTES) -> str:
    """Return the text, cut to so many bytes of UTF-8 at the end of a character."""
    return text.encode(errors="replace")[:max_bytes].decode(errors="ignore")


def error_from(name: str, error: grpc.aio.AioRpcError) -> MeshError:
    """Return the refusal that the peer sent, or the refusal for its bare status.

    The refusal contains the name of the peer and no address. If a message is too large, its fact
    `larger_message` is `response` or `request`.
    """
    code, details = error.code().name, error.details() or ""
    sent = _sent_refusal(details, error.trailing_metadata() or (), code)
    if sent is not None:
        return sent
    reason, text = _OF_CODE.get(code, (Reason.INTERNAL, "{name} failed"))
    if code == "RESOURCE_EXHAUSTED" and _TOO_LARGE_TEXT.search(details):
        reason, text = _TOO_LARGE
    facts = {"dependency": name}
    if reason is Reason.MESSAGE_TOO_LARGE:
        facts["larger_message"] = "response" if _RECEIVED_TOO_MUCH.search(details) else "request"
    return MeshError(
        reason,
        text.format(name=name),
        retry_after_seconds=1.0 if reason in _PASSING else None,
        facts=facts,
    )


def client_error_from(name: str, error: grpc.aio.AioRpcError) -> MeshError:
    """Return the refusal for a program outside of the mesh.

    A bare status keeps its code: an older service, a newer one or a proxy may have sent it. A
    service takes such a status of a peer for a defect, and reads errors with `error_from`.
    """
    refusal, code = error_from(name, error), error.code().name
    if code == refusal.status.value:
        return refusal
    if code == "UNIMPLEMENTED":
        text = "{name} does not know this call: it is of another version, or no mesh is at this address"
        return MeshError(Reason.UNKNOWN_RPC, text.format(name=name), facts={"dependency": name})
    if code not in Status.__members__:
        return refusal
    return MeshError(
        _OF_BARE.get(code, Reason.INTERNAL),
        shortened(error.details() or f"{name} refused the call with {code}"),
        status=Status(code),
        facts={"dependency": name},
    )


def error_of_status(status: status_pb2.Status) -> MeshError:
    """Return the refusal that a status in a message is, such as the error of an operation."""
    code = code_pb2.Code.Name(status.code) if status.code in code_pb2.Code.values() else "INTERNAL"
    refusal = _refusal_in(status, status.message, code)
    if refusal is not None:
        return refusal
    known = Status(code) if code in Status.__members__ else Status.INTERNAL
    return MeshError(_OF_BARE.get(code, Reason.INTERNAL), shortened(status.message), status=known)


def _sent_refusal(message: str, metadata: Iterable[Any], code: str) -> MeshError | None:
    packed = next((value for key, value in metadata if key == DETAILS_KEY and isinstance(value, bytes)), None)
    if packed is None:
        return None
    try:
        return _refusal_in(status_pb2.Status.FromString(packed), message, code)
    except DecodeError:
        return None


def _refusal_in(sent: status_pb2.Status, message: str, code: str) -> MeshError | None:
    """Return the refusal in the details; None if they are not of the mesh."""
    if code not in Status.__members__:
        return None
    info, retry, bad = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.RetryInfo(),
        error_details_pb2.BadRequest(),
    )
    try:
        for detail in sent.details:
            for known in (info, retry, bad):
                detail.Unpack(known)
    except DecodeError:
        return None
    if not info.domain.endswith(_DOMAIN_SUFFIX) or info.reason not in Reason.__members__:
        return None
    seconds = retry.retry_delay.ToNanoseconds() / 1e9
    return MeshError(
        Reason(info.reason),
        message,
        status=Status(code),
        retry_after_seconds=seconds if seconds > 0 else None,
        violations=tuple(FieldViolation(item.field, item.description) for item in bad.field_violations),
        domain=info.domain,
        facts=dict(info.metadata),
    )
