-- name: list_tenants
-- Takes no lock; reads in the scope of every tenant. A page of the tenants after one.
-- Index: tenant_work_pkey.
select tenant_id from tenant_work where tenant_id > %(after_id)s order by tenant_id limit %(limit)s;

-- The other statements delete the rows up to the time of the last one of a page, and so a few more
-- than the limit where several rows have that time.

-- name: delete_old_deliveries
-- Locks the rows that it deletes. Index: deliveries_newest_idx.
with page as (
    select start_time from deliveries
    where tenant_id = %(tenant_id)s and start_time between '-infinity' and now() - %(retention)s::interval
    order by start_time limit %(limit)s
)
delete from deliveries
where tenant_id = %(tenant_id)s and start_time between '-infinity' and (select max(start_time) from page);

-- name: delete_old_decisions
-- Locks the rows that it deletes. Index: decisions_age_idx.
with page as (
    select decide_time from decisions
    where tenant_id = %(tenant_id)s and decide_time between '-infinity' and now() - %(retention)s::interval
    order by decide_time limit %(limit)s
)
delete from decisions
where tenant_id = %(tenant_id)s and decide_time between '-infinity' and (select max(decide_time) from page);

-- name: delete_old_run_revisions
-- Locks the rows that it deletes. Index: run_revisions_age_idx.
with page as (
    select change_time from run_revisions
    where tenant_id = %(tenant_id)s and change_time between '-infinity' and now() - %(retention)s::interval
    order by change_time limit %(limit)s
)
delete from run_revisions
where tenant_id = %(tenant_id)s and change_time between '-infinity' and (select max(change_time) from page);

-- name: delete_old_revision_keys
-- Locks the rows that it deletes. Index: revision_keys_age_idx.
with page as (
    select change_time from revision_keys
    where tenant_id = %(tenant_id)s and change_time between '-infinity' and now() - %(retention)s::interval
    order by change_time limit %(limit)s
)
delete from revision_keys
where tenant_id = %(tenant_id)s and change_time between '-infinity' and (select max(change_time) from page);

-- name: delete_old_plugin_waits
-- Locks the rows that it deletes. Index: plugin_waits_age_idx.
with page as (
    select begin_time from plugin_waits
    where tenant_id = %(tenant_id)s and begin_time between '-infinity' and now() - %(retention)s::interval
    order by begin_time limit %(limit)s
)
delete from plugin_waits
where tenant_id = %(tenant_id)s and begin_time between '-infinity' and (select max(begin_time) from page);

-- name: delete_old_allowed_spawns
-- Locks the rows that it deletes. Index: allowed_spawns_age_idx.
with page as (
    select allow_time from allowed_spawns
    where tenant_id = %(tenant_id)s and allow_time between '-infinity' and now() - %(retention)s::interval
    order by allow_time limit %(limit)s
)
delete from allowed_spawns
where tenant_id = %(tenant_id)s and allow_time between '-infinity' and (select max(allow_time) from page);

-- name: delete_old_observed_events
-- Locks the rows that it deletes. Index: observed_events_age_idx.
with page as (
    select publish_time from observed_events
    where tenant_id = %(tenant_id)s and publish_time between '-infinity' and now() - %(retention)s::interval
    order by publish_time limit %(limit)s
)
delete from observed_events
where tenant_id = %(tenant_id)s and publish_time between '-infinity' and (select max(publish_time) from page)
returning event_key;

-- name: delete_deliveries_of_events
-- Locks the rows. Index: jobs_event_idx.
delete from jobs
where tenant_id = %(tenant_id)s and event_key >= '' and event_key = any (%(event_keys)s::text[]);
