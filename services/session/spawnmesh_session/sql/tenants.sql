-- name: insert_tenant
-- Does nothing where the tenant exists. Index: tenants_pkey.
insert into tenants (tenant_id, display_name, settings, max_running_run_count, settings_version)
values (%(tenant_id)s, %(display_name)s, %(settings)s, %(max_running_run_count)s, %(settings_version)s)
on conflict do nothing

-- name: mark_tenant_ready
-- Locks the tenant. Index: tenants_pkey.
update tenants set ready = true where tenant_id = %(tenant_id)s and not ready

-- name: lock_tenant
-- Locks the tenant until the transaction ends. Index: tenants_pkey.
select display_name, settings, settings_version from tenants where tenant_id = %(tenant_id)s for update

-- name: update_tenant
-- Locks the tenant; its ended sessions are looked at again at once. Index: tenants_pkey.
update tenants
set display_name = %(display_name)s, settings = %(settings)s, max_running_run_count = %(max_running_run_count)s,
    settings_version = settings_version + 1, retain_time = now()
where tenant_id = %(tenant_id)s

-- name: enter_tenant
-- Waits for a deletion of the tenant that is just beginning, and lets none begin until the transaction ends. Index: tenants_pkey, tenant_deletions_pkey.
select * from enter_tenant(%(tenant_id)s)

-- name: get_tenant
-- Locks nothing. Index: tenants_pkey, tenant_deletions_pkey.
select asked.tenant_id, t.display_name, t.settings, t.settings_version, t.ready, t.create_time, to_jsonb(d) - 'tenant_id' as deletion
from (select %(tenant_id)s::text as tenant_id) asked
left join tenants t on t.tenant_id = asked.tenant_id
left join tenant_deletions d on d.tenant_id = asked.tenant_id
where t.tenant_id is not null or d.tenant_id is not null

-- name: list_tenants
-- Locks nothing; reads the directory in the scope of every tenant. A page ends early rather than pass %(max_bytes)s of whole tenants, but has at least one;
-- found_count is more than the page has where it is not the last. Index: tenants_pkey, tenant_deletions_pkey.
with page as (
    select t.tenant_id, t.display_name, t.settings, t.settings_version, t.ready, t.create_time
    from tenants t
    where t.tenant_id > %(after_id)s and (t.ready or exists (select from tenant_deletions d where d.tenant_id = t.tenant_id))
    order by t.tenant_id
    limit %(page_size)s + 1
), measured as (
    select p.*, row_number() over by_id as place, count(*) over () as found_count,
           sum(octet_length(p::text)) over by_id as bytes
    from page p
    window by_id as (order by tenant_id)
)
select tenant_id, display_name, settings, settings_version, ready, create_time, found_count,
       (select to_jsonb(d) - 'tenant_id' from tenant_deletions d where d.tenant_id = m.tenant_id) as deletion
from measured m
where place <= %(page_size)s and (bytes <= %(max_bytes)s or place = 1)
order by place

-- name: list_to_retain
-- Locks nothing; reads the directory in the scope of every tenant. Index: tenants_retain_idx.
select tenant_id, tenant_id as subject_id from tenants where retain_time <= now() order by retain_time limit 32

-- name: claim_retention
-- Locks the tenant. No row: it is not due, another sweep came first. Index: tenants_pkey.
update tenants set retain_time = now() + %(again_in)s::interval
where tenant_id = %(tenant_id)s and retain_time <= now()
returning settings

-- name: hasten_retention
-- Locks the tenant. Index: tenants_pkey.
update tenants set retain_time = now() where tenant_id = %(tenant_id)s

-- name: delete_tenant
-- Locks the row. Index: tenants_pkey.
delete from tenants where tenant_id = %(tenant_id)s

-- name: put_agent
-- Locks the agent. Index: agents_pkey.
insert into agents (tenant_id, agent_id, system_prompt, models, tools, spawnable_agents, max_turn_count, context_token_budget, thinking,
                    mcp_servers)
values (%(tenant_id)s, %(agent_id)s, %(system_prompt)s, %(models)s, %(tools)s, %(spawnable_agents)s, %(max_turn_count)s,
        %(context_token_budget)s, %(thinking)s, %(mcp_servers)s)
on conflict (tenant_id, agent_id) do update
set system_prompt = excluded.system_prompt, models = excluded.models, tools = excluded.tools, spawnable_agents = excluded.spawnable_agents,
    max_turn_count = excluded.max_turn_count, context_token_budget = excluded.context_token_budget, thinking = excluded.thinking,
    mcp_servers = excluded.mcp_servers

-- name: insert_agent
-- Does nothing where the agent exists. Index: agents_pkey.
insert into agents (tenant_id, agent_id, system_prompt, models, tools, spawnable_agents, max_turn_count, context_token_budget, thinking,
                    mcp_servers)
values (%(tenant_id)s, %(agent_id)s, %(system_prompt)s, %(models)s, %(tools)s, %(spawnable_agents)s, %(max_turn_count)s,
        %(context_token_budget)s, %(thinking)s, %(mcp_servers)s)
on conflict do nothing

-- name: delete_agent
-- Locks the agent. Index: agents_pkey.
delete from agents where tenant_id = %(tenant_id)s and agent_id = %(agent_id)s

-- name: get_agent
-- Locks nothing. Index: agents_pkey.
select agent_id, system_prompt, models, tools, spawnable_agents, max_turn_count, context_token_budget, thinking, mcp_servers
from agents where tenant_id = %(tenant_id)s and agent_id = %(agent_id)s

-- name: get_agent_of_session
-- Locks nothing. Index: agents_pkey, sessions_pkey.
select agent_id, system_prompt, models, tools, spawnable_agents, max_turn_count, context_token_budget, thinking, mcp_servers
from agents
where tenant_id = %(tenant_id)s
  and agent_id = (select s.agent_id from sessions s where s.tenant_id = %(tenant_id)s and s.session_id = %(session_id)s)

-- name: count_agents
-- Locks nothing; exact while the tenant is locked by whoever writes agents. Index: agents_pkey.
select count(*) as held, coalesce(bool_or(agent_id = %(agent_id)s), false) as is_known from agents where tenant_id = %(tenant_id)s

-- name: list_agents
-- Locks nothing. A page ends early rather than pass %(max_bytes)s of whole agents, but has at least one; found_count is more than the page has where it is not
-- the last. Index: agents_pkey.
with page as (
    select * from agents where tenant_id = %(tenant_id)s and agent_id > %(after_id)s order by agent_id limit %(page_size)s + 1
), measured as (
    select p.*, row_number() over by_id as place, count(*) over () as found_count,
           sum(octet_length(system_prompt) + octet_length(models::text) + octet_length(tools::text) + octet_length(spawnable_agents::text)
               + octet_length(mcp_servers::text)) over by_id as bytes
    from page p
    window by_id as (order by agent_id)
)
select agent_id, system_prompt, models, tools, spawnable_agents, max_turn_count, context_token_budget, thinking, mcp_servers, found_count
from measured
where place <= %(page_size)s and (bytes <= %(max_bytes)s or place = 1)
order by place
