"""Creating a tenant, with its bucket and its default agent, and changing what holds for it."""

from dataclasses import dataclass
from typing import Any

from psycopg.rows import DictRow
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import EVERY_TENANT, Connection, Database

from spawnmesh_session.domain import DEFAULT_AGENT, AgentProfile, DeletionStep, check_new_agent
from spawnmesh_session.operations.settings_push import SettingsPush
from spawnmesh_session.store import tenant_deletions, tenants
from spawnmesh_session.tenant_change import TenantChange


@dataclass(frozen=True, slots=True)
class Tenants:
    """Tenants and their agents."""

    database: Database
    push: SettingsPush

    async def create(self, tenant_id: str, display_name: str, settings: dict[str, Any]) -> DictRow:
        """Every step may be repeated, so a call cut off between is completed by the next one."""
        async with self.database.transaction(tenant_id) as connection:
            last_version = await self._clear_of_deletion(connection, tenant_id)
            await tenants.insert(connection, tenant_id, display_name, settings, settings_version=last_version + 1)
            row = await tenants.get(connection, tenant_id)
            if row["settings"] != settings or row["display_name"] != display_name:
                raise MeshError(
                    Reason.ALREADY_EXISTS,
                    f"tenant {tenant_id} exists with other settings",
                    facts={"tenant_id": tenant_id},
                )
            await tenants.insert_agent(connection, tenant_id, DEFAULT_AGENT)
            push_id = await self.push.begin(connection, tenant_id)
        for error in (await self.push.run(tenant_id, push_id, row)).values():
            raise error
        async with self.database.transaction(tenant_id) as connection:
            await self._clear_of_deletion(connection, tenant_id)
            await tenants.mark_ready(connection, tenant_id)
            return await tenants.get(connection, tenant_id)

    async def update(self, tenant_id: str, change: TenantChange, expected_version: int) -> tuple[DictRow, list[str]]:
        """The tenant with the change, and the peers that have not taken it yet. CONFLICT where a version is expected and it has another."""
        async with self.database.transaction(tenant_id) as connection:
            await tenants.enter_ready(connection, tenant_id)
            known = await tenants.lock(connection, tenant_id)
            held = (known["display_name"], known["settings"])
            wanted = change.applied_to(*held)
            if wanted != held:
                version = known["settings_version"]
                if expected_version not in (0, version):
                    raise MeshError(
                        Reason.CONFLICT,
                        f"tenant {tenant_id} has settings version {version}, and the change was made from {expected_version}; look at it again",
                        facts={"tenant_id": tenant_id, "settings_version": version},
                    )
                await tenants.update(connection, tenant_id, *wanted)
            row = await tenants.get(connection, tenant_id)
            push_id = await self.push.begin(connection, tenant_id)
        return row, sorted(await self.push.run(tenant_id, push_id, row))

    async def find(self, tenant_id: str) -> DictRow:
        """The tenant, or the report of its deletion; NOT_FOUND where there is neither."""
        async with self.database.transaction(tenant_id) as connection:
            row = await tenants.find(connection, tenant_id)
        if row is None:
            raise not_found("tenant", tenant_id)
        return row

    async def list_page(self, *, after_id: str, page_size: int) -> tenants.TenantsPage:
        """A page of every tenant, by id."""
        async with self.database.transaction(EVERY_TENANT) as connection:
            return await tenants.list_ready(connection, after_id=after_id, page_size=page_size)

    async def put_agent(self, tenant_id: str, agent: AgentProfile) -> None:
        """Writes an agent; AGENT_COUNT_EXCEEDED where it is a new one and the tenant has as many as it may."""
        async with self.database.transaction(tenant_id) as connection:
            await tenants.enter_ready(connection, tenant_id)
            await tenants.lock(connection, tenant_id)  # Of two new agents at once the second is counted with the first.
            held, is_known = await tenants.count_agents(connection, tenant_id, agent.agent_id)
            if not is_known:
                check_new_agent(held)
            await tenants.put_agent(connection, tenant_id, agent)

    async def get_agent(self, tenant_id: str, agent_id: str) -> AgentProfile:
        """The agent; UNKNOWN_AGENT where there is none of that id."""
        async with self.database.transaction(tenant_id) as connection:
            return tenants.known_agent(agent_id, await tenants.find_agent(connection, tenant_id, agent_id))

    async def delete_agent(self, tenant_id: str, agent_id: str) -> None:
        """Deletes an agent, if there is one of that id. Runs that are claimed later find it gone."""
        async with self.database.transaction(tenant_id) as connection:
            await tenants.enter_ready(connection, tenant_id)
            await tenants.delete_agent(connection, tenant_id, agent_id)

    async def list_agents(self, tenant_id: str, *, after_id: str, page_size: int) -> tenants.AgentsPage:
        """A page of the tenant's agents, by id."""
        async with self.database.transaction(tenant_id) as connection:
            return await tenants.list_agents(connection, tenant_id, after_id=after_id, page_size=page_size)

    async def _clear_of_deletion(self, connection: Connection, tenant_id: str) -> int:
        """Forgets a deletion that is done; CONFLICT while one is not. None begins until the transaction has ended.

        The version that the settings of the deleted tenant had last, which replicas may remember; 0 where there was none.
        """
        row = await tenants.enter(connection, tenant_id)
        if row is None or not row["deletion"]:
            return 0
        if row["deletion"]["step"] != DeletionStep.DONE:
            raise MeshError(
                Reason.CONFLICT,
                f"tenant {tenant_id} is being deleted; create it again once it is",
                retry_after_seconds=5.0,
                facts={"tenant_id": tenant_id},
            )
        await tenant_deletions.forget(connection, tenant_id)
        return int(row["deletion"]["settings_version"])
