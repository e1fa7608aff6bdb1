-- name: insert_tenant
-- Does nothing where the tenant exists. Index: tenants_pkey.
insert into tenants (tenant_id, display_name, settings, max_running_run_count)
values (%(tenant_id)s, %(display_name)s, %(settings)s, %(max_running_run_count)s)
on conflict do nothing

-- name: mark_tenant_ready
-- Locks the tenant. Index: tenants_pkey.
update tenants set ready = true where tenant_id = %(tenant_id)s and not ready

-- name: get_tenant
-- Locks nothing. Index: tenants_pkey.
select tenant_id, display_name, settings, settings_version, ready, create_time from tenants where tenant_id = %(tenant_id)s

-- name: list_tenants
-- Locks nothing; reads the directory in the scope of every tenant. Index: tenants_pkey.
select tenant_id, display_name, settings, settings_version, ready, create_time from tenants where ready order by tenant_id

-- name: put_agent
-- Locks the agent. Index: agents_pkey.
insert into agents (tenant_id, agent_id, system_prompt, models, tools, spawnable_agents, max_turn_count, context_token_budget)
values (%(tenant_id)s, %(agent_id)s, %(system_prompt)s, %(models)s, %(tools)s, %(spawnable_agents)s, %(max_turn_count)s,
        %(context_token_budget)s)
on conflict (tenant_id, agent_id) do update
set system_prompt = excluded.system_prompt, models = excluded.models, tools = excluded.tools, spawnable_agents = excluded.spawnable_agents,
    max_turn_count = excluded.max_turn_count, context_token_budget = excluded.context_token_budget

-- name: insert_agent
-- Does nothing where the agent exists. Index: agents_pkey.
insert into agents (tenant_id, agent_id, system_prompt, models, tools, spawnable_agents, max_turn_count, context_token_budget)
values (%(tenant_id)s, %(agent_id)s, %(system_prompt)s, %(models)s, %(tools)s, %(spawnable_agents)s, %(max_turn_count)s,
        %(context_token_budget)s)
on conflict do nothing

-- name: get_agent
-- Locks nothing. Index: agents_pkey.
select agent_id, system_prompt, models, tools, spawnable_agents, max_turn_count, context_token_budget
from agents where tenant_id = %(tenant_id)s and agent_id = %(agent_id)s

-- name: list_agents
-- Locks nothing. Index: agents_pkey.
select agent_id, system_prompt, models, tools, spawnable_agents, max_turn_count, context_token_budget
from agents where tenant_id = %(tenant_id)s order by agent_id
