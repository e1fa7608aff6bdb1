-- name: enter_tenant
-- Lets no purge of the tenant begin until the transaction ends; waits for one that is just beginning. Index: tenants primary key.
select enter_tenant(%(tenant_id)s) as is_open;

-- name: put_tenant
-- Locks the row when it exists; an older or equal version changes nothing. Index: tenants primary key.
insert into tenants as t (
    tenant_id, settings_version, mask_secrets, stub_large_tool_payloads, large_payload_bytes, compact_at_percent, token_vocabulary
) values (
    %(tenant_id)s, %(settings_version)s, %(mask_secrets)s, %(stub_large_tool_payloads)s, %(large_payload_bytes)s, %(compact_at_percent)s,
    %(token_vocabulary)s
)
on conflict (tenant_id) do update
set settings_version = excluded.settings_version, mask_secrets = excluded.mask_secrets,
    stub_large_tool_payloads = excluded.stub_large_tool_payloads, large_payload_bytes = excluded.large_payload_bytes,
    compact_at_percent = excluded.compact_at_percent, token_vocabulary = excluded.token_vocabulary
where t.settings_version < excluded.settings_version;

-- name: read_settings
-- No lock. Index: tenants primary key.
select settings_version, mask_secrets, stub_large_tool_payloads, large_payload_bytes, compact_at_percent, token_vocabulary
from tenants
where tenant_id = %(tenant_id)s;

-- name: begin_purge
-- Waits for whatever is beginning in the tenant, and lets nothing begin. Index: tenants primary key.
select pg_advisory_xact_lock(hashtextextended('transcripts of ' || %(tenant_id)s, 0));

-- name: mark_purging
-- Locks the row. Gives nothing where the tenant was created anew since it had this version. Index: tenants primary key.
insert into tenants as t (tenant_id, settings_version, mask_secrets, is_purging, purged_version)
values (%(tenant_id)s, 0, false, true, %(settings_version)s)
on conflict (tenant_id) do update
set is_purging = true, purged_version = greatest(t.purged_version, excluded.purged_version)
where excluded.purged_version = 0 or greatest(t.settings_version, t.purged_version) <= excluded.purged_version
returning tenant_id;

-- name: lock_purge
-- Locks the row, so that the tenant is not made ready before the transaction ends. Gives nothing where the purge is over, or of a tenant that was created anew.
-- Index: tenants primary key.
select from tenants
where tenant_id = %(tenant_id)s and is_purging
    and (%(settings_version)s = 0 or greatest(settings_version, purged_version) <= %(settings_version)s)
for update;

-- name: pass_purge
-- Locks the row. Gives nothing unless the tenant of these settings was created after the one that is being purged. Index: tenants primary key.
update tenants
set is_purging = false, purged_version = 0
where tenant_id = %(tenant_id)s and is_purging and purged_version > 0 and purged_version < %(settings_version)s
returning tenant_id;

-- name: end_purge
-- Locks the row. Index: tenants primary key.
delete from tenants where tenant_id = %(tenant_id)s and is_purging;
