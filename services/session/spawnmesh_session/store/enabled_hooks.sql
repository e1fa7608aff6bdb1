-- name: add_hooks
-- Adds hooks to those of the tenant. Locks the tenant. Returns no row if it does not exist. Index:
-- tenants_pkey.
update tenants
set hooks = array(select unnest(hooks) union select unnest(%(hooks)s::text[]) order by 1)
where tenant_id = %(tenant_id)s
returning tenant_id

-- name: add_shared_hooks
-- Adds hooks to those of all tenants. Locks the one row. Index: shared_hooks_pkey.
insert into shared_hooks as s (hooks) values (%(hooks)s)
on conflict (is_only) do update
set hooks = array(select unnest(s.hooks) union select unnest(excluded.hooks) order by 1)

-- name: get_enabled_hooks
-- Takes no lock. `shared` is null before the shared hooks are known. Index: tenants_pkey,
-- shared_hooks_pkey.
select hooks, (select s.hooks from shared_hooks s where s.is_only) as shared
from tenants where tenant_id = %(tenant_id)s
