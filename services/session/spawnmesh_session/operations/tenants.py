"""Creating a tenant: its row, its bucket, its default agent."""

from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import ParseDict
from psycopg.rows import DictRow
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import EVERY_TENANT, Database
from spawnmesh_runtime.acting import acting_for

from spawnmesh_session.domain import DEFAULT_AGENT, AgentProfile
from spawnmesh_session.peers import AttachmentSets
from spawnmesh_session.store import tenants


@dataclass(frozen=True, slots=True)
class Tenants:
    """Tenants and their agents."""

    database: Database
    sets: AttachmentSets

    async def create(self, tenant_id: str, display_name: str, settings: dict[str, Any]) -> DictRow:
        """Every step may be repeated, so a call cut off between is completed by the next one."""
        async with self.database.transaction(tenant_id) as connection:
            await tenants.insert(connection, tenant_id, display_name, settings)
            row = await tenants.get(connection, tenant_id)
            if row["settings"] != settings or row["display_name"] != display_name:
                raise MeshError(
                    Reason.ALREADY_EXISTS,
                    f"tenant {tenant_id} exists with other settings",
                    facts={"tenant_id": tenant_id},
                )
            await tenants.insert_agent(connection, tenant_id, DEFAULT_AGENT)
        limits = ParseDict(settings["attachments"], AttachmentLimits())
        with acting_for(tenant_id):
            await self.sets.prepare_tenant(row["settings_version"], limits)
        async with self.database.transaction(tenant_id) as connection:
            await tenants.mark_ready(connection, tenant_id)
        return row

    async def list_all(self) -> list[DictRow]:
        """Every tenant, by id."""
        async with self.database.transaction(EVERY_TENANT) as connection:
            return await tenants.list_ready(connection)

    async def put_agent(self, tenant_id: str, agent: AgentProfile) -> None:
        """Writes an agent."""
        async with self.database.transaction(tenant_id) as connection:
            await tenants.get_ready(connection, tenant_id)
            await tenants.put_agent(connection, tenant_id, agent)

    async def list_agents(self, tenant_id: str) -> list[AgentProfile]:
        """The tenant's agents, by id."""
        async with self.database.transaction(tenant_id) as connection:
            return await tenants.list_agents(connection, tenant_id)
