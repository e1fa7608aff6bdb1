"""The RPCs of this service that start an operation."""

from typing import Any

from spawnmesh.transcript.v1 import compaction_service_pb2, storage_service_pb2
from spawnmesh_postgres.long_running.operation import NewOperation, OperationType
from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.telemetry import current_traceparent

_STORAGE: Any = storage_service_pb2.DESCRIPTOR.services_by_name["StorageService"].methods_by_name
_COMPACTION: Any = compaction_service_pb2.DESCRIPTOR.services_by_name["CompactionService"].methods_by_name

TIER = OperationType.of(_STORAGE["TierTranscript"])
RECOUNT = OperationType.of(_STORAGE["RecountTranscript"])
COMPACT = OperationType.of(_COMPACTION["CompactTranscript"])
OPERATION_TYPES = (TIER, RECOUNT, COMPACT)


def new_operation(type_: OperationType, request: Any, caller: Caller) -> NewOperation:
    """Return the operation that the call of a client starts."""
    return NewOperation(type_, request.request_id, request, caller.subject, current_traceparent())
