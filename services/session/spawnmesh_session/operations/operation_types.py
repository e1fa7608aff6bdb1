"""The RPCs of this service that start an operation."""

from typing import Any

from spawnmesh.session.v1 import tenant_service_pb2
from spawnmesh_postgres.long_running.operation import OperationType

_SERVICE: Any = tenant_service_pb2.DESCRIPTOR.services_by_name["TenantService"]

DELETE_TENANT = OperationType.of(_SERVICE.methods_by_name["DeleteTenant"], must_complete=True)
OPERATION_TYPES = (DELETE_TENANT,)
