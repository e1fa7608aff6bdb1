-- name: bar_tenant
-- Waits until whatever is adding rows for the tenant has ended, and makes those that begin now wait until this transaction has.
select pg_advisory_xact_lock(hashtextextended('model_router rows of ' || %(tenant_id)s, 0));

-- name: mark_purged
-- Locks the row. Index: purged_tenants_pkey.
insert into purged_tenants (tenant_id) values (%(tenant_id)s) on conflict do nothing;

-- name: end_purge
-- Locks the row. Index: purged_tenants_pkey.
update purged_tenants set is_done = true where tenant_id = %(tenant_id)s and not is_done;

-- name: forget_purge
-- Locks the row; leaves one that is not done. Index: purged_tenants_pkey.
delete from purged_tenants where tenant_id = %(tenant_id)s and is_done;

-- name: is_purging
-- No lock. Index: purged_tenants_pkey.
select from purged_tenants where tenant_id = %(tenant_id)s;

-- name: purge_policies
-- Locks what it deletes: one row at most. Index: tenant_policies_pkey.
delete from tenant_policies where tenant_id = %(tenant_id)s;

-- name: purge_periods
-- Locks what it deletes; see the function. Index: budget_periods_pkey.
select purge_periods(%(tenant_id)s, %(limit)s) as row_count;
