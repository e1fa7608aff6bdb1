-- name: insert_event
-- Locks no existing row. Returns nothing for a known key. Index: observed_events_pkey.
insert into observed_events (tenant_id, event_key, hook, session_id, run_id, event)
values (%(tenant_id)s, %(event_key)s, %(hook)s, %(session_id)s, %(run_id)s, %(event)s)
on conflict do nothing
returning event_key;

-- name: read_event
-- Takes no lock. Index: observed_events_pkey.
select hook, session_id, run_id, event from observed_events
where tenant_id = %(tenant_id)s and event_key = %(event_key)s;

-- name: lock_paused_plugin
-- Locks the plugin, so that a resume either sees the held job or is seen here. Returns nothing if
-- the plugin is not paused. Index: plugins_pkey.
select name from plugins where tenant_id = %(tenant_id)s and name = %(plugin)s and paused for share;

-- name: hold_delivery
-- Ends the claim of the job, which does not count as an attempt. Locks the row. Index: jobs_pkey.
update jobs set due_time = 'infinity', claim_id = null, attempt_count = attempt_count - 1
where tenant_id = %(tenant_id)s and kind = 'deliver_event' and key = %(key)s and claim_id = %(claim_id)s;

-- name: release_held_deliveries
-- Notifies the workers when the transaction commits. Locks the rows. Index: jobs_plugin_idx.
with due as (
    update jobs set due_time = now()
    where tenant_id = %(tenant_id)s and plugin >= '' and plugin = %(name)s
      and due_time = 'infinity'
    returning kind
)
select pg_notify('jobs' || (select suffix from _spawnmesh_channels), kind) from due limit 1;

-- name: list_open_events
-- Takes no lock; exact while the events are locked. Those of the events that have a job. Index:
-- jobs_event_idx.
select distinct event_key from jobs
where tenant_id = %(tenant_id)s and event_key >= '' and event_key = any (%(event_keys)s::text[]);

-- name: clear_events
-- Locks the events, and clears their content. Index: observed_events_pkey.
update observed_events set event = ''
where tenant_id = %(tenant_id)s and event_key = any (%(event_keys)s) and event <> '';

-- name: lock_events
-- Locks the events in order, after their jobs. Of two deliveries that end at the same time, the
-- second then sees in its next statement that the first has ended. Index: observed_events_pkey.
select from observed_events
where tenant_id = %(tenant_id)s and event_key = any (%(event_keys)s)
order by event_key for no key update;

-- name: delete_deliveries_of_plugin
-- Locks the rows. Index: jobs_plugin_idx.
delete from jobs
where tenant_id = %(tenant_id)s and plugin >= '' and plugin = %(name)s
returning event_key;
