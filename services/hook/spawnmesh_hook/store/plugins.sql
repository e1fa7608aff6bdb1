-- name: insert_plugin
-- Returns no row if the plugin exists. Index: plugins_pkey. A new generation starts from the time,
-- so that a name that is deleted and registered again never gets an old generation.
insert into plugins
    (tenant_id, name, endpoint, hooks, priority, timeout, max_wait, failure_policy, grants,
     max_concurrent_calls, generation)
values
    (%(tenant_id)s, %(name)s, %(endpoint)s, %(hooks)s, %(priority)s, %(timeout)s,
     %(max_wait)s, %(failure_policy)s, %(grants)s, %(max_concurrent_calls)s,
     (extract(epoch from clock_timestamp()) * 1000000)::bigint)
on conflict do nothing
returning name, endpoint, hooks, priority, timeout, max_wait, failure_policy, grants, max_concurrent_calls,
    paused, generation, registration;

-- name: update_plugin
-- Locks the row. Returns no row if the plugin has another generation. Index: plugins_pkey. The
-- plugin keeps its registration, and stays paused if it was.
update plugins
set endpoint = %(endpoint)s, hooks = %(hooks)s, priority = %(priority)s, timeout = %(timeout)s,
    max_wait = %(max_wait)s, failure_policy = %(failure_policy)s, grants = %(grants)s,
    max_concurrent_calls = %(max_concurrent_calls)s, generation = generation + 1
where tenant_id = %(tenant_id)s and name = %(name)s and generation = %(generation)s
returning name, endpoint, hooks, priority, timeout, max_wait, failure_policy, grants, max_concurrent_calls,
    paused, generation, registration;

-- name: lock_plugin
-- Locks the row until the transaction ends. Index: plugins_pkey.
select name, endpoint, hooks, priority, timeout, max_wait, failure_policy, grants, max_concurrent_calls,
    paused, generation, registration
from plugins where tenant_id = %(tenant_id)s and name = %(name)s for update;

-- name: lock_tenant
-- Locks the tenant's settings, so that one transaction after the other counts and adds plugins.
-- Index: tenants_pkey.
select max_plugin_count, max_gate_count, settings_version
from tenants where tenant_id = %(tenant_id)s for update;

-- name: count_plugins
-- Takes no lock. A separate statement after lock_tenant, so that it sees what was committed while
-- that waited. Index: plugins_pkey.
select
    count(*) as plugin_count,
    count(*) filter (where hooks && %(awaited)s::text[]) as gate_count,
    coalesce(bool_or(name = %(name)s), false) as is_known,
    coalesce(bool_or(name = %(name)s and hooks && %(awaited)s::text[]), false) as is_known_gate
from plugins
where tenant_id = %(tenant_id)s;

-- name: list_plugins
-- Takes no lock. Indexes: plugins_pkey, decisions_pkey. A tenant has few plugins. Returns one row
-- without a name if the tenant has no plugins.
select name, endpoint, hooks, priority, timeout, max_wait, failure_policy, grants, max_concurrent_calls,
    paused, generation, registration,
    exists (select from decisions where tenant_id = %(tenant_id)s) as has_decisions
from (values (1)) as one (row) left join plugins on tenant_id = %(tenant_id)s
order by priority desc, registration;

-- name: set_paused
-- Locks the row. Index: plugins_pkey.
update plugins
set paused = %(paused)s, generation = generation + 1
where tenant_id = %(tenant_id)s and name = %(name)s
returning name, endpoint, hooks, priority, timeout, max_wait, failure_policy, grants, max_concurrent_calls,
    paused, generation, registration;

-- name: delete_plugin
-- Locks the row. Index: plugins_pkey.
delete from plugins where tenant_id = %(tenant_id)s and name = %(name)s;

-- name: notify_plugins_changed
-- Delivered when the transaction commits.
select pg_notify(%(channel)s || suffix, '') from _spawnmesh_channels;
