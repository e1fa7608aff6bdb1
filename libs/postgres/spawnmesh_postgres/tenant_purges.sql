-- name: get_purge
-- Takes no lock. Index: purged_tenants_pkey.
select settings_version, begin_time, end_time from purged_tenants where tenant_id = %(tenant_id)s;

-- name: put_purge
-- Locks the row if it exists. Index: purged_tenants_pkey.
insert into purged_tenants (tenant_id, settings_version)
values (%(tenant_id)s, %(settings_version)s)
on conflict (tenant_id) do update
set settings_version = excluded.settings_version;

-- name: lock_purge
-- Locks the row, so that the tenant is not prepared before the transaction ends. Returns no row if
-- the purge is over or is one of a newer tenant. Index: purged_tenants_pkey.
select from purged_tenants
where tenant_id = %(tenant_id)s and (%(settings_version)s = 0 or settings_version <= %(settings_version)s)
for update;

-- name: finish_purge
-- Locks the row. Index: purged_tenants_pkey.
update purged_tenants set end_time = now() where tenant_id = %(tenant_id)s and end_time is null;

-- name: delete_purge
-- Locks the row: waits for a page of the purge. Index: purged_tenants_pkey.
delete from purged_tenants where tenant_id = %(tenant_id)s;
