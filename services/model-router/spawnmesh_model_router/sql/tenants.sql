-- name: bar_tenant
-- Waits until whatever is adding rows for the tenant has ended, and makes those that begin now wait until this transaction has.
select pg_advisory_xact_lock(hashtextextended('model_router rows of ' || %(tenant_id)s, 0));

-- name: mark_purged
-- Locks the row. Gives nothing where the tenant was created anew since it had this version. Index: purged_tenants_pkey, tenant_policies_pkey.
insert into purged_tenants as p (tenant_id, settings_version)
select %(tenant_id)s, %(settings_version)s
where %(settings_version)s = 0
   or not exists (select from tenant_policies t where t.tenant_id = %(tenant_id)s and t.settings_version > %(settings_version)s)
on conflict (tenant_id) do update
set settings_version = greatest(p.settings_version, excluded.settings_version)
where excluded.settings_version = 0 or p.settings_version <= excluded.settings_version
returning tenant_id;

-- name: lock_purge
-- Locks the row, so that the tenant is not made ready before the transaction ends. Gives nothing where the purge is over, or of a tenant that was created anew.
-- Index: purged_tenants_pkey.
select from purged_tenants
where tenant_id = %(tenant_id)s and (%(settings_version)s = 0 or settings_version <= %(settings_version)s)
for update;

-- name: end_purge
-- Locks the row. Index: purged_tenants_pkey.
update purged_tenants set is_done = true where tenant_id = %(tenant_id)s and not is_done;

-- name: forget_purge
-- Locks the row; leaves one that is of these settings or newer ones, and one that does not say and is not done. Index: purged_tenants_pkey.
delete from purged_tenants
where tenant_id = %(tenant_id)s
  and case when settings_version = 0 or %(settings_version)s = 0 then is_done else settings_version < %(settings_version)s end;

-- name: get_purge
-- No lock. Index: purged_tenants_pkey.
select is_done from purged_tenants where tenant_id = %(tenant_id)s;

-- name: purge_policies
-- Locks what it deletes: one row at most. Index: tenant_policies_pkey.
delete from tenant_policies where tenant_id = %(tenant_id)s;

-- name: purge_periods
-- Locks what it deletes; see the function. Index: budget_periods_pkey.
select purge_periods(%(tenant_id)s, %(limit)s) as row_count;
