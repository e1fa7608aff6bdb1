"""The header by which a gateway finds the service of a call."""

SERVICE_HEADER = "spawnmesh-service"
"""Each service serves the contracts of jobs, the audit log and the deployment. A gateway has one
address for all services, so a call of these names the service, such as `hook`, in this header.
"""
