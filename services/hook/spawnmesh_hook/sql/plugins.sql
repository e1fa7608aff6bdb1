-- name: put_plugin
-- Locks the row it replaces. Index: plugins_pkey. A replaced plugin keeps its registration.
insert into plugins (tenant_id, name, endpoint, hooks, priority, timeout, failure_policy, grants)
values (%(tenant_id)s, %(name)s, %(endpoint)s, %(hooks)s, %(priority)s, %(timeout)s, %(failure_policy)s, %(grants)s)
on conflict (tenant_id, name) do update
set endpoint = excluded.endpoint, hooks = excluded.hooks, priority = excluded.priority, timeout = excluded.timeout,
    failure_policy = excluded.failure_policy, grants = excluded.grants;

-- name: list_plugins
-- No lock. Index: plugins_pkey; a tenant has few.
select name, endpoint, hooks, priority, timeout, failure_policy, grants
from plugins
where tenant_id = %(tenant_id)s
order by priority desc, registration;

-- name: plugins_for_hook
-- No lock. Index: plugins_pkey; a tenant has few.
select name, endpoint, hooks, priority, timeout, failure_policy, grants
from plugins
where tenant_id = %(tenant_id)s and %(hook)s = any (hooks)
order by priority desc, registration;

-- name: remove_plugin
-- Locks the row. Index: plugins_pkey.
delete from plugins where tenant_id = %(tenant_id)s and name = %(name)s;
