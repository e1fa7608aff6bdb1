"""JSON over HTTP: Envoy turns it into calls by the `google.api.http` rules of the contracts."""

from collections.abc import Iterable

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.rpc import error_details_pb2, status_pb2

from spawnmesh_gateway.rpcs import client_rpcs
from spawnmesh_gateway.settings import GatewaySettings
from spawnmesh_gateway.typed import Json, typed

CONTRACTS_FILE = "contracts.binpb"
FILTER = "envoy.filters.http.grpc_json_transcoder"
TYPE = "envoy.extensions.filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder"
SERVICES_PREFIX = "/v1/services/"
"""The paths of the RPCs that each service serves begin with this and the service."""


def descriptor_set() -> bytes:
    """Return the contracts of all RPCs that have a path, with their imports and the details of
    errors.
    """
    roots = {
        rpc.method.containing_service.file.name: rpc.method.containing_service.file for rpc in client_rpcs()
    }
    details = (error_details_pb2.DESCRIPTOR, status_pb2.DESCRIPTOR)
    found: dict[str, FileDescriptor] = {}
    _collect([*(roots[name] for name in sorted(roots)), *details], found)
    files = FileDescriptorSet()
    for file in found.values():
        file.CopyToProto(files.file.add())
    return files.SerializeToString(deterministic=True)


def transcoder(settings: GatewaySettings, *, by_incoming_path: bool) -> Json:
    """Return the filter's configuration.

    With `by_incoming_path`, the route of the HTTP path leads to the service; otherwise the path of
    the RPC does.
    """
    return typed(
        TYPE,
        proto_descriptor=str(settings.folder / CONTRACTS_FILE),
        services=sorted({rpc.method.containing_service.full_name for rpc in client_rpcs()}),
        match_incoming_request_route=by_incoming_path,
        convert_grpc_status=True,
        # Fields have the names of the contracts. A stream is server-sent events.
        print_options={"preserve_proto_field_names": True, "stream_sse_style_delimited": True},
        # A path that no RPC has is refused here, so that nothing but gRPC reaches a service.
        request_validation_options={"reject_unknown_query_parameters": True, "reject_unknown_method": True},
        max_request_body_size=settings.max_message_bytes,
        max_response_body_size=settings.max_message_bytes,
    )


def _collect(files: Iterable[FileDescriptor], found: dict[str, FileDescriptor]) -> None:
    """Add the files behind their imports."""
    for file in files:
        if file.name not in found:
            _collect(file.dependencies, found)
            found[file.name] = file
