-- name: put_settings
-- Locks the row if it exists. An older or equal version changes nothing. Index: tenants_pkey.
insert into tenants as t (tenant_id, settings_version, mask_secrets)
values (%(tenant_id)s, %(settings_version)s, %(mask_secrets)s)
on conflict (tenant_id) do update
set settings_version = excluded.settings_version, mask_secrets = excluded.mask_secrets
where t.settings_version < excluded.settings_version;

-- name: get_settings_version
-- Takes no lock. Index: tenants_pkey.
select settings_version from tenants where tenant_id = %(tenant_id)s;

-- name: masks_secrets
-- Takes no lock. Index: tenants_pkey.
select mask_secrets from tenants where tenant_id = %(tenant_id)s;

-- name: delete_settings
-- Locks the row. Index: tenants_pkey.
delete from tenants where tenant_id = %(tenant_id)s;

-- name: purge_plugins
-- Locks the rows that it deletes. Index: plugins_pkey.
with page as (
    select name from plugins where tenant_id = %(tenant_id)s order by name limit %(limit)s
)
delete from plugins where tenant_id = %(tenant_id)s and name <= (select max(name) from page);

-- name: purge_outbox_entries
-- Locks the rows that it deletes. Index: outbox_entries_pkey.
with page as (
    select event_key from outbox_entries where tenant_id = %(tenant_id)s order by event_key, plugin limit %(limit)s
)
delete from outbox_entries where tenant_id = %(tenant_id)s and event_key <= (select max(event_key) from page);

-- name: purge_observed_events
-- Locks the rows that it deletes. Index: observed_events_pkey.
with page as (
    select event_key from observed_events where tenant_id = %(tenant_id)s order by event_key limit %(limit)s
)
delete from observed_events where tenant_id = %(tenant_id)s and event_key <= (select max(event_key) from page);

-- name: purge_decisions
-- Locks the rows that it deletes. Index: decisions_pkey.
with page as (
    select run_id from decisions where tenant_id = %(tenant_id)s order by run_id, dispatch_key limit %(limit)s
)
delete from decisions where tenant_id = %(tenant_id)s and run_id <= (select max(run_id) from page);

-- name: purge_run_revisions
-- Locks the rows that it deletes. Index: run_revisions_pkey.
with page as (
    select run_id from run_revisions where tenant_id = %(tenant_id)s order by run_id limit %(limit)s
)
delete from run_revisions where tenant_id = %(tenant_id)s and run_id <= (select max(run_id) from page);

-- name: purge_revision_keys
-- Locks the rows that it deletes. Index: revision_keys_pkey.
with page as (
    select run_id from revision_keys where tenant_id = %(tenant_id)s order by run_id, plugin, idempotency_key limit %(limit)s
)
delete from revision_keys where tenant_id = %(tenant_id)s and run_id <= (select max(run_id) from page);

-- name: purge_plugin_waits
-- Locks the rows that it deletes. Index: plugin_waits_pkey.
with page as (
    select run_id from plugin_waits where tenant_id = %(tenant_id)s order by run_id, plugin limit %(limit)s
)
delete from plugin_waits where tenant_id = %(tenant_id)s and run_id <= (select max(run_id) from page);

-- name: purge_allowed_spawns
-- Locks the rows that it deletes. Index: allowed_spawns_pkey.
with page as (
    select session_id from allowed_spawns where tenant_id = %(tenant_id)s order by session_id limit %(limit)s
)
delete from allowed_spawns where tenant_id = %(tenant_id)s and session_id <= (select max(session_id) from page);

-- name: purge_deliveries
-- Locks the rows that it deletes. Index: deliveries_pkey.
with page as (
    select delivery_id from deliveries where tenant_id = %(tenant_id)s order by delivery_id limit %(limit)s
)
delete from deliveries where tenant_id = %(tenant_id)s and delivery_id <= (select max(delivery_id) from page);
