-- name: put_settings
-- Locks the row if it exists. An older or equal version changes nothing. Index: tenants_pkey.
insert into tenants as t (tenant_id, settings_version, mask_secrets, max_plugin_count, max_gate_count)
values (%(tenant_id)s, %(settings_version)s, %(mask_secrets)s, %(max_plugin_count)s, %(max_gate_count)s)
on conflict (tenant_id) do update
set settings_version = excluded.settings_version, mask_secrets = excluded.mask_secrets,
    max_plugin_count = excluded.max_plugin_count, max_gate_count = excluded.max_gate_count
where t.settings_version < excluded.settings_version;

-- name: masks_secrets
-- Takes no lock. Index: tenants_pkey.
select mask_secrets from tenants where tenant_id = %(tenant_id)s;
