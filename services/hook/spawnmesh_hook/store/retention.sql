-- name: list_tenants
-- Takes no lock; reads in the scope of every tenant. A page of tenants after one. Index: tenants_pkey.
select tenant_id from tenants where tenant_id > %(after_id)s order by tenant_id limit %(limit)s;

-- name: delete_old_deliveries
-- Locks the rows, and skips locked ones. Index: deliveries_newest_idx, deliveries_pkey.
with old as (
    select delivery_id from deliveries
    where tenant_id = %(tenant_id)s and start_time < now() - %(retention)s::interval
    limit %(limit)s for update skip locked
)
delete from deliveries t using old
where t.tenant_id = %(tenant_id)s and t.delivery_id = old.delivery_id;

-- name: delete_old_decisions
-- Locks the rows, and skips locked ones. Index: decisions_age_idx, decisions_pkey.
with old as (
    select run_id, dispatch_key from decisions
    where tenant_id = %(tenant_id)s and decide_time between '-infinity' and now() - %(retention)s::interval
    limit %(limit)s for update skip locked
)
delete from decisions t using old
where t.tenant_id = %(tenant_id)s and t.run_id = old.run_id and t.dispatch_key = old.dispatch_key;

-- name: delete_old_run_revisions
-- Locks the rows, and skips locked ones. Index: run_revisions_age_idx, run_revisions_pkey.
with old as (
    select run_id from run_revisions
    where tenant_id = %(tenant_id)s and change_time between '-infinity' and now() - %(retention)s::interval
    limit %(limit)s for update skip locked
)
delete from run_revisions t using old
where t.tenant_id = %(tenant_id)s and t.run_id = old.run_id;

-- name: delete_old_revision_keys
-- Locks the rows, and skips locked ones. Index: revision_keys_age_idx, revision_keys_pkey.
with old as (
    select run_id, plugin, idempotency_key from revision_keys
    where tenant_id = %(tenant_id)s and change_time between '-infinity' and now() - %(retention)s::interval
    limit %(limit)s for update skip locked
)
delete from revision_keys t using old
where t.tenant_id = %(tenant_id)s and t.run_id = old.run_id
    and t.plugin = old.plugin
    and t.idempotency_key = old.idempotency_key;

-- name: delete_old_plugin_waits
-- Locks the rows, and skips locked ones. Index: plugin_waits_age_idx, plugin_waits_pkey.
with old as (
    select run_id, plugin from plugin_waits
    where tenant_id = %(tenant_id)s and begin_time between '-infinity' and now() - %(retention)s::interval
    limit %(limit)s for update skip locked
)
delete from plugin_waits t using old
where t.tenant_id = %(tenant_id)s and t.run_id = old.run_id and t.plugin = old.plugin;

-- name: delete_old_allowed_spawns
-- Locks the rows, and skips locked ones. Index: allowed_spawns_age_idx, allowed_spawns_pkey.
with old as (
    select session_id from allowed_spawns
    where tenant_id = %(tenant_id)s and allow_time between '-infinity' and now() - %(retention)s::interval
    limit %(limit)s for update skip locked
)
delete from allowed_spawns t using old
where t.tenant_id = %(tenant_id)s and t.session_id = old.session_id;

-- name: delete_old_observed_events
-- Locks the rows, and skips locked ones. Index: observed_events_age_idx, observed_events_pkey.
with old as (
    select event_key from observed_events
    where tenant_id = %(tenant_id)s and publish_time between '-infinity' and now() - %(retention)s::interval
    limit %(limit)s for update skip locked
)
delete from observed_events t using old
where t.tenant_id = %(tenant_id)s and t.event_key = old.event_key
returning t.event_key;

-- name: delete_entries_of_events
-- Locks the rows. Index: outbox_entries_pkey.
delete from outbox_entries where tenant_id = %(tenant_id)s and event_key = any (%(event_keys)s);
