-- name: put_tenant
-- Locks the row when it exists; an older or equal version changes nothing. Index: attachment_tenants_pkey.
insert into attachment_tenants as t
    (tenant_id, settings_version, enabled, max_file_count, max_file_bytes, max_total_bytes)
values
    (%(tenant_id)s, %(settings_version)s, %(enabled)s, %(max_file_count)s, %(max_file_bytes)s, %(max_total_bytes)s)
on conflict (tenant_id) do update
set settings_version = excluded.settings_version, enabled = excluded.enabled, max_file_count = excluded.max_file_count,
    max_file_bytes = excluded.max_file_bytes, max_total_bytes = excluded.max_total_bytes
where t.settings_version < excluded.settings_version;

-- name: get_tenant
-- No lock. Index: attachment_tenants_pkey, sets_pkey. The state is that of the set that is about to be staged, null for a new one.
select
    t.settings_version, t.enabled, t.max_file_count, t.max_file_bytes, t.max_total_bytes,
    (select s.state from sets s where s.tenant_id = t.tenant_id and s.set_id = %(set_id)s) as set_state
from attachment_tenants t
where t.tenant_id = %(tenant_id)s;
