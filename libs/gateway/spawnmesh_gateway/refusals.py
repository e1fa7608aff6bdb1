"""The refusals of the gateway itself, with the same shape as those of a service."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf import json_format
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import code_pb2, error_details_pb2, status_pb2
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import STATUS_OF

from spawnmesh_gateway.typed import Json

DOMAIN = "gateway.spawnmesh"
_DETAILS_HEADER = "grpc-status-details-bin"
_OVERWRITE = "OVERWRITE_IF_EXISTS_OR_ADD"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer of the gateway in place of a service. `http_status` is the one of Envoy's own
    answer that it stands for.
    """

    http_status: int
    reason: Reason
    message: str
    retry_after_seconds: int = 0

    @property
    def code(self) -> int:
        """The number of the gRPC status."""
        return int(code_pb2.Code.Value(STATUS_OF[self.reason].value))

    @property
    def status(self) -> status_pb2.Status:
        """The whole refusal, as a service would send it."""
        status = status_pb2.Status(code=self.code, message=self.message)
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=self.reason.value, domain=DOMAIN))
        if self.retry_after_seconds:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.seconds = self.retry_after_seconds
            status.details.add().Pack(retry)
        return status

    @property
    def as_json(self) -> Json:
        """The refusal in the JSON form of `google.rpc.Status`."""
        details = [_detail_as_json(detail) for detail in self.status.details]
        return {"code": self.code, "message": self.message, "details": details}


UNKNOWN_RPC = Refusal(
    404,
    Reason.UNKNOWN_RPC,
    "the gateway has no such RPC: it is misspelled, or for services of the mesh alone",
)
NAME_THE_SERVICE = Refusal(
    400,
    Reason.INVALID_REQUEST,
    "every service has this RPC: name one, such as session, in the path or in the header spawnmesh-service",
)
_MALFORMED = Refusal(400, Reason.INVALID_REQUEST, "the request is malformed")
_OVERLOADED = Refusal(429, Reason.POOL_EXHAUSTED, "the gateway is overloaded; call again later", 1)
_TOO_LARGE = Refusal(413, Reason.MESSAGE_TOO_LARGE, "the message is larger than the gateway allows")
_AWAY = Refusal(503, Reason.DEPENDENCY_UNAVAILABLE, "the service does not answer; call again later", 1)
_TIMED_OUT = Refusal(504, Reason.DEADLINE_EXCEEDED, "the service did not answer in time")
_IDLE = Refusal(408, Reason.DEADLINE_EXCEEDED, "the request did not arrive in time")
_OF_ENVOY = (_MALFORMED, UNKNOWN_RPC, _IDLE, _TOO_LARGE, _OVERLOADED, _AWAY, _TIMED_OUT)


def direct_refusal(refusal: Refusal) -> Json:
    """Return the part of a route that refuses every call."""
    return {
        "direct_response": {"status": refusal.http_status, "body": {"inline_string": refusal.message}},
    }


def local_replies() -> Json:
    """Return how Envoy writes its own answers: as gRPC has them to gRPC, and as JSON to others."""
    return {"mappers": [mapper for refusal in _OF_ENVOY for mapper in _mappers(refusal)]}


def _mappers(refusal: Refusal) -> Iterator[Json]:
    of_status = {
        "status_code_filter": {
            "comparison": {
                "op": "EQ",
                "value": {"default_value": refusal.http_status, "runtime_key": "gateway.refusals"},
            }
        }
    }
    is_grpc = {
        "header_filter": {"header": {"name": "content-type", "string_match": {"prefix": "application/grpc"}}}
    }
    # Envoy has this header on calls that it made from JSON. It is removed from those of a caller.
    not_json = {
        "header_filter": {
            "header": {"name": "x-envoy-original-path", "present_match": True, "invert_match": True}
        }
    }
    packed = base64.b64encode(refusal.status.SerializeToString()).decode().rstrip("=")
    yield {
        "filter": {"and_filter": {"filters": [of_status, is_grpc, not_json]}},
        "headers_to_add": [
            _header(_DETAILS_HEADER, packed),
            _header("grpc-status", str(refusal.code)),
        ],
    }
    body = {**refusal.as_json, "message": "%LOCAL_REPLY_BODY%"}
    yield {
        "filter": of_status,
        "body_format_override": {"json_format": body},
    }


def _header(name: str, value: str) -> Json:
    return {"header": {"key": name, "value": value}, "append_action": _OVERWRITE}


def _detail_as_json(detail: AnyMessage) -> Json:
    as_json: Json = json.loads(json_format.MessageToJson(detail))
    return as_json
