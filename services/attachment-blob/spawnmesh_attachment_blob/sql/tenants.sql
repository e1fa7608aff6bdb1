-- name: bar_tenant
-- Waits for a page of a purge of the tenant, and for whoever makes it ready; who wants to do one or the other waits until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('make ready or purge ' || %(tenant_id)s, 0));

-- name: put_tenant
-- Locks the row when it exists; an older or equal version changes nothing. Ends a purge that is of the tenant before the one with these settings, which has
-- nothing left to remove. Index: attachment_tenants_pkey.
insert into attachment_tenants as t
    (tenant_id, settings_version, enabled, max_file_count, max_file_bytes, max_total_bytes, retention_seconds, download_url_seconds)
values
    (%(tenant_id)s, %(settings_version)s, %(enabled)s, %(max_file_count)s, %(max_file_bytes)s, %(max_total_bytes)s,
     %(retention_seconds)s, %(download_url_seconds)s)
on conflict (tenant_id) do update
set settings_version = excluded.settings_version, enabled = excluded.enabled, max_file_count = excluded.max_file_count,
    max_file_bytes = excluded.max_file_bytes, max_total_bytes = excluded.max_total_bytes,
    retention_seconds = excluded.retention_seconds, download_url_seconds = excluded.download_url_seconds,
    purging = t.purging and t.purged_version not between 1 and excluded.settings_version - 1,
    purged_version = case when t.purged_version < excluded.settings_version then 0 else t.purged_version end
where t.settings_version < excluded.settings_version;

-- name: get_tenant
-- No lock. Index: attachment_tenants_pkey, sets_pkey, uploads_owner_idx. The state is that of the set that is about to be staged, null for a new
-- one; the uploads are those it names, of the one owner who may name them, each found as for get_upload. Needs `keep_to_indexes` for them.
select
    t.settings_version, t.enabled, t.max_file_count, t.max_file_bytes, t.max_total_bytes, t.retention_seconds, t.download_url_seconds,
    t.purging, t.purged_version,
    (select s.state from sets s where s.tenant_id = t.tenant_id and s.set_id = %(set_id)s and s.state <> 'STAGING') as set_state,
    (
        select jsonb_agg(jsonb_build_array(named.upload_id, found.name, found.size_bytes, found.sha256, found.mime_type, found.state))
        from unnest(%(upload_ids)s::text[]) named (upload_id)
        cross join lateral (
            select u.name, u.size_bytes, u.sha256, u.mime_type, u.state
            from uploads u
            where u.tenant_id = %(tenant_id)s and u.given_id between named.upload_id and named.upload_id
                and u.session_id = %(uploader_session_id)s
            order by u.given_id
            limit 1
        ) found
    ) as uploads
from attachment_tenants t
where t.tenant_id = %(tenant_id)s;

-- name: hold_off_purge
-- Waits for a purge of the tenant that is just beginning; one that wants to begin waits until the transaction ends.
select pg_advisory_xact_lock_shared(hashtextextended('store something of ' || %(tenant_id)s, 0));

-- name: list_tenants
-- No lock. For the collector, in the scope of every tenant where %(tenant_id)s is null. Index: attachment_tenants_pkey.
select t.tenant_id
from attachment_tenants t
where (%(tenant_id)s::text is null or t.tenant_id = %(tenant_id)s) and t.tenant_id > %(after)s
order by t.tenant_id
limit %(limit)s;
