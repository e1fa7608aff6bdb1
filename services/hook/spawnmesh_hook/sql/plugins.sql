-- name: put_plugin
-- Locks the row it replaces. Index: plugins_pkey. A replaced plugin keeps its registration, and is paused if it was. A generation begins with the
-- time, so that none is had twice by a name that was removed meanwhile.
insert into plugins
    (tenant_id, name, endpoint, hooks, priority, timeout, failure_policy, grants, max_concurrent_calls, generation)
values
    (%(tenant_id)s, %(name)s, %(endpoint)s, %(hooks)s, %(priority)s, %(timeout)s, %(failure_policy)s, %(grants)s,
     %(max_concurrent_calls)s, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
on conflict (tenant_id, name) do update
set endpoint = excluded.endpoint, hooks = excluded.hooks, priority = excluded.priority, timeout = excluded.timeout,
    failure_policy = excluded.failure_policy, grants = excluded.grants,
    max_concurrent_calls = excluded.max_concurrent_calls, generation = plugins.generation + 1
returning name, endpoint, hooks, priority, timeout, failure_policy, grants, max_concurrent_calls, paused, generation;

-- name: list_plugins
-- No lock. Indexes: plugins_pkey, decisions_pkey; a tenant has few plugins. One row without a name where it has none.
select name, endpoint, hooks, priority, timeout, failure_policy, grants, max_concurrent_calls, paused, generation,
    exists (select from decisions where tenant_id = %(tenant_id)s) as has_decisions
from (values (1)) as one (row) left join plugins on tenant_id = %(tenant_id)s
order by priority desc, registration;

-- name: set_paused
-- Locks the row. Index: plugins_pkey.
update plugins
set paused = %(paused)s, generation = generation + 1
where tenant_id = %(tenant_id)s and name = %(name)s
returning name, endpoint, hooks, priority, timeout, failure_policy, grants, max_concurrent_calls, paused, generation;

-- name: remove_plugin
-- Locks the row. Index: plugins_pkey.
delete from plugins where tenant_id = %(tenant_id)s and name = %(name)s;

-- name: hold_events
-- Locks the rows of what the plugin is still to be told of, in order, so that the next statement sees who else has heard. Looks for them one by one; the
-- plugin is a range, for whose order the planner has one index alone. Index: tellings_plugin_idx, observed_events_pkey.
select from (
    select t.event_key from tellings t
    where t.tenant_id = %(tenant_id)s and t.plugin between %(name)s and %(name)s
    order by t.plugin, t.event_key
) told
cross join lateral (
    select from observed_events e where e.tenant_id = %(tenant_id)s and e.event_key = told.event_key for no key update
) held;

-- name: remove_tellings
-- Locks the rows, and those of the events that nobody else is still to be told of, which are emptied. Index: tellings_plugin_idx,
-- observed_events_pkey, tellings_pkey.
with removed as (
    delete from tellings where tenant_id = %(tenant_id)s and plugin = %(name)s returning tenant_id, event_key
)
update observed_events e set event = ''
from removed
where e.tenant_id = removed.tenant_id and e.event_key = removed.event_key
    and not exists (
        select from tellings t
        where t.tenant_id = e.tenant_id and t.event_key = e.event_key and t.plugin <> %(name)s and t.state = 'WAITING'
    );

-- name: announce_plugins_changed
-- Heard when the transaction commits.
select pg_notify(%(channel)s, '');
