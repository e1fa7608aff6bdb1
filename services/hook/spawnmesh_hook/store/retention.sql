-- name: delete_old_deliveries
-- Locks the rows that it deletes, of every tenant. Index: deliveries_age_idx.
delete from deliveries
where (tenant_id, delivery_id) in (
    select tenant_id, delivery_id from deliveries
    where start_time < now() - %(retention)s::interval limit %(limit)s for update skip locked
);

-- name: delete_old_decisions
-- Locks the rows that it deletes, of every tenant. Index: decisions_age_idx.
delete from decisions
where (tenant_id, run_id, dispatch_key) in (
    select tenant_id, run_id, dispatch_key from decisions
    where decide_time < now() - %(retention)s::interval limit %(limit)s for update skip locked
);

-- name: delete_old_run_revisions
-- Locks the rows that it deletes, of every tenant. Index: run_revisions_age_idx.
delete from run_revisions
where (tenant_id, run_id) in (
    select tenant_id, run_id from run_revisions
    where change_time < now() - %(retention)s::interval limit %(limit)s for update skip locked
);

-- name: delete_old_revision_keys
-- Locks the rows that it deletes, of every tenant. Index: revision_keys_age_idx.
delete from revision_keys
where (tenant_id, run_id, plugin, idempotency_key) in (
    select tenant_id, run_id, plugin, idempotency_key from revision_keys
    where change_time < now() - %(retention)s::interval limit %(limit)s for update skip locked
);

-- name: delete_old_plugin_waits
-- Locks the rows that it deletes, of every tenant. Index: plugin_waits_age_idx.
delete from plugin_waits
where (tenant_id, run_id, plugin) in (
    select tenant_id, run_id, plugin from plugin_waits
    where begin_time < now() - %(retention)s::interval limit %(limit)s for update skip locked
);

-- name: delete_old_allowed_spawns
-- Locks the rows that it deletes, of every tenant. Index: allowed_spawns_age_idx.
delete from allowed_spawns
where (tenant_id, session_id) in (
    select tenant_id, session_id from allowed_spawns
    where allow_time < now() - %(retention)s::interval limit %(limit)s for update skip locked
);

-- name: delete_old_observed_events
-- Locks the rows that it deletes and their outbox entries, of every tenant.
-- Index: observed_events_age_idx.
delete from observed_events
where (tenant_id, event_key) in (
    select tenant_id, event_key from observed_events
    where publish_time < now() - %(retention)s::interval limit %(limit)s for update skip locked
);
