-- name: write_agent
-- Locks the agent. Writes nothing if it is not one version older. Index: agents_pkey.
insert into agents (tenant_id, agent_id, system_prompt, models, tools, spawnable_agents, max_turn_count,
                    context_token_budget, thinking, mcp_servers, approval, version)
values (%(tenant_id)s, %(agent_id)s, %(system_prompt)s, %(models)s, %(tools)s, %(spawnable_agents)s,
        %(max_turn_count)s, %(context_token_budget)s, %(thinking)s, %(mcp_servers)s, %(approval)s,
        %(version)s)
on conflict (tenant_id, agent_id) do update
set system_prompt = excluded.system_prompt, models = excluded.models, tools = excluded.tools,
    spawnable_agents = excluded.spawnable_agents, max_turn_count = excluded.max_turn_count,
    context_token_budget = excluded.context_token_budget, thinking = excluded.thinking,
    mcp_servers = excluded.mcp_servers, approval = excluded.approval, version = excluded.version
where excluded.version = agents.version + 1
returning agent_id

-- name: insert_agent
-- Does nothing if the agent exists. Index: agents_pkey.
insert into agents (tenant_id, agent_id, system_prompt, models, tools, spawnable_agents, max_turn_count,
                    context_token_budget, thinking, mcp_servers, approval, version)
values (%(tenant_id)s, %(agent_id)s, %(system_prompt)s, %(models)s, %(tools)s, %(spawnable_agents)s,
        %(max_turn_count)s, %(context_token_budget)s, %(thinking)s, %(mcp_servers)s, %(approval)s,
        %(version)s)
on conflict do nothing

-- name: delete_agent
-- Locks the agent. Index: agents_pkey.
delete from agents where tenant_id = %(tenant_id)s and agent_id = %(agent_id)s

-- name: get_agent
-- Takes no lock. Index: agents_pkey.
select * from agents where tenant_id = %(tenant_id)s and agent_id = %(agent_id)s

-- name: count_agents
-- Takes no lock. Exact while the transaction holds the lock on the tenant, which each writer of
-- agents takes. Index: agents_pkey.
select count(*) as agent_count from agents where tenant_id = %(tenant_id)s

-- name: list_agents
-- Takes no lock. A page ends before its agents exceed %(max_bytes)s, but has at least one.
-- found_count exceeds the number of rows unless the page is the last. Index: agents_pkey.
with page as (
    select * from agents where tenant_id = %(tenant_id)s and agent_id > %(after_id)s
    order by agent_id limit %(page_size)s + 1
), measured as (
    select p.*, row_number() over by_id as rank, count(*) over () as found_count,
           sum(octet_length(system_prompt) + octet_length(models::text) + octet_length(tools::text)
               + octet_length(spawnable_agents::text) + octet_length(mcp_servers::text)
               + octet_length(approval::text)) over by_id as bytes
    from page p
    window by_id as (order by agent_id)
)
select *
from measured
where rank <= %(page_size)s and (bytes <= %(max_bytes)s or rank = 1)
order by rank
