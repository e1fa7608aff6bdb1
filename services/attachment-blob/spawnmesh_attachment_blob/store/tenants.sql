-- name: put_tenant
-- Locks the row if it exists. An older or equal version changes nothing.
-- Index: attachment_tenants_pkey.
insert into attachment_tenants as t
    (tenant_id, settings_version, enabled, max_file_count, max_file_bytes, max_total_bytes,
     retention_seconds, download_url_seconds, max_stored_bytes)
values
    (%(tenant_id)s, %(settings_version)s, %(enabled)s, %(max_file_count)s, %(max_file_bytes)s,
     %(max_total_bytes)s, %(retention_seconds)s, %(download_url_seconds)s, %(max_stored_bytes)s)
on conflict (tenant_id) do update
set settings_version = excluded.settings_version, enabled = excluded.enabled,
    max_file_count = excluded.max_file_count, max_file_bytes = excluded.max_file_bytes,
    max_total_bytes = excluded.max_total_bytes, retention_seconds = excluded.retention_seconds,
    download_url_seconds = excluded.download_url_seconds, max_stored_bytes = excluded.max_stored_bytes
where t.settings_version < excluded.settings_version;

-- name: get_tenant
-- Takes no lock. Returns no row for a tenant that is not prepared or is being purged. `set_state`
-- is the state of the set that is to be staged, null for a new set. `uploads` are the uploads that
-- the set names. Index: attachment_tenants_pkey, purged_tenants_pkey, sets_pkey, uploads_pkey.
select
    t.settings_version, t.enabled, t.max_file_count, t.max_file_bytes, t.max_total_bytes,
    t.retention_seconds, t.download_url_seconds, t.max_stored_bytes,
    (select s.state from sets s where s.tenant_id = %(tenant_id)s and s.set_id = %(set_id)s) as set_state,
    (
        select jsonb_agg(jsonb_build_array(
            u.upload_id, u.name, u.size_bytes, u.sha256, u.mime_type, u.state
        ))
        from uploads u
        where u.tenant_id = %(tenant_id)s and u.row_id = any(%(upload_row_ids)s::text[])
    ) as uploads
from attachment_tenants t
where t.tenant_id = %(tenant_id)s
    and not exists (select true from purged_tenants p where p.tenant_id = %(tenant_id)s);

-- name: list_tenants
-- Takes no lock. For the worker, in the scope of every tenant. Index: tenant_work_pkey.
select tenant_id from tenant_work where tenant_id > %(after)s order by tenant_id limit %(limit)s;

-- name: claim_collection
-- Locks the row. Updates nothing if another worker claimed this interval, or the tenant is being
-- purged. Index: tenant_work_pkey.
update tenant_work
set collect_time = now()
where tenant_id = %(tenant_id)s
    and (collect_time is null or collect_time < now() - make_interval(secs => %(interval_seconds)s))
returning tenant_id;
