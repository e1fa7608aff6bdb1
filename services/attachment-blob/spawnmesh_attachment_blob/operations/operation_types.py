"""The RPCs of this service that start an operation."""

from typing import Any

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2
from spawnmesh_postgres.long_running.operation import OperationType

_SERVICE: Any = attachment_blob_service_pb2.DESCRIPTOR.services_by_name["AttachmentBlobService"]

COLLECT = OperationType.of(_SERVICE.methods_by_name["CollectGarbage"])
OPERATION_TYPES = (COLLECT,)
