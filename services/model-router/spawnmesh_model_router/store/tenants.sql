-- name: lock_tenant
-- Takes the tenant's exclusive advisory lock until the transaction ends. Waits for transactions
-- that add usage of the tenant; later ones wait for this transaction (see skip_purged).
select pg_advisory_xact_lock(hashtextextended('model_router rows of ' || %(tenant_id)s, 0));

-- name: begin_purge
-- Locks the row. Index: purged_tenants_pkey, tenant_policies_pkey. Returns no row if the tenant was
-- created again after this version of its settings.
insert into purged_tenants as p (tenant_id, settings_version)
select %(tenant_id)s, %(settings_version)s
where %(settings_version)s = 0
   or not exists (select from tenant_policies t
                  where t.tenant_id = %(tenant_id)s and t.settings_version > %(settings_version)s)
on conflict (tenant_id) do update
set settings_version = greatest(p.settings_version, excluded.settings_version)
where excluded.settings_version = 0 or p.settings_version <= excluded.settings_version
returning tenant_id;

-- name: lock_purge
-- Locks the row, so that PrepareTenant waits until the transaction ends. Index:
-- purged_tenants_pkey. Returns no row if the purge has ended or is of a later tenant with the same
-- id.
select from purged_tenants
where tenant_id = %(tenant_id)s and (%(settings_version)s = 0 or settings_version <= %(settings_version)s)
for update;

-- name: end_purge
-- Locks the row. Index: purged_tenants_pkey.
update purged_tenants set is_done = true where tenant_id = %(tenant_id)s and not is_done;

-- name: delete_purge
-- Locks the row. Index: purged_tenants_pkey. Keeps the row of a purge of these settings or of newer
-- ones, and the row of an unfinished purge if either side gave no version.
delete from purged_tenants
where tenant_id = %(tenant_id)s
  and case when settings_version = 0 or %(settings_version)s = 0 then is_done
           else settings_version < %(settings_version)s end;

-- name: is_purge_done
-- Takes no lock. Index: purged_tenants_pkey. Returns no row if the tenant is not being purged.
select is_done from purged_tenants where tenant_id = %(tenant_id)s;
