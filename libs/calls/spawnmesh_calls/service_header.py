"""The header by which a gateway finds the service of a call."""

SERVICE_HEADER = "spawnmesh-service"
"""Several services serve the contracts of jobs, operations, the audit log and the deployment. A
gateway has one address for all services, so a call of these names the service, such as `hook`, in
this header.
"""
