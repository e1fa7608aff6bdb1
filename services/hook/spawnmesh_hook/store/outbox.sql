-- name: insert_event
-- Locks no existing row. Returns nothing for a known key. Index: observed_events_pkey.
insert into observed_events (tenant_id, event_key, hook, session_id, run_id, event, traceparent)
values (%(tenant_id)s, %(event_key)s, %(hook)s, %(session_id)s, %(run_id)s, %(event)s, %(traceparent)s)
on conflict do nothing
returning event_key;

-- name: insert_outbox_entries
-- Locks no existing row.
insert into outbox_entries (tenant_id, event_key, plugin)
select %(tenant_id)s, %(event_key)s, unnest(%(plugins)s::text[]);

-- name: notify_outbox
-- Delivered when the transaction commits.
select pg_notify(%(channel)s, '');

-- name: claim_due_entries
-- Locks the rows that it claims, of every tenant, and skips rows that another worker is claiming.
-- A claimed row is due again when its lease expires. It reads in the order of the first index,
-- since the backlog may be long. Indexes: outbox_entries_pending_idx, outbox_entries_pkey.
with due as materialized (
    select tenant_id, event_key, plugin
    from outbox_entries
    where state = 'PENDING' and due_time between '-infinity' and now()
        and tenant_id <> all (%(full_tenants)s::text[])
    order by due_time
    limit %(limit)s
    for update skip locked
)
update outbox_entries o
set due_time = now() + %(lease)s::interval, attempt_count = o.attempt_count + 1
from due
where o.tenant_id = due.tenant_id and o.event_key = due.event_key and o.plugin = due.plugin
returning o.tenant_id, o.event_key, o.plugin, o.attempt_count;

-- name: read_events
-- Takes no lock. Index: observed_events_pkey.
select event_key, hook, event, traceparent from observed_events
where tenant_id = %(tenant_id)s and event_key = any (%(event_keys)s);

-- name: seconds_to_next_entry
-- Takes no lock. Reads every tenant but the full ones. Index: outbox_entries_pending_idx.
select extract(epoch from min(due_time) - now())::float8 as seconds
from outbox_entries
where state = 'PENDING' and due_time >= '-infinity' and tenant_id <> all (%(full_tenants)s::text[]);

-- name: delete_entry
-- Locks the row. Index: outbox_entries_pkey.
delete from outbox_entries
where tenant_id = %(tenant_id)s and event_key = %(event_key)s and plugin = %(plugin)s;

-- name: delay_entry
-- Locks the row. Index: outbox_entries_pkey.
update outbox_entries set due_time = now() + %(delay)s::interval
where tenant_id = %(tenant_id)s and event_key = %(event_key)s and plugin = %(plugin)s;

-- name: lock_paused_plugin
-- Locks the plugin, so that a resume either sees the held entry or is seen here. Returns nothing if
-- the plugin is not paused. Index: plugins_pkey.
select name from plugins where tenant_id = %(tenant_id)s and name = %(plugin)s and paused for share;

-- name: hold_entry
-- Locks the row. Does not count as an attempt. Index: outbox_entries_pkey.
update outbox_entries set state = 'HELD', attempt_count = attempt_count - 1
where tenant_id = %(tenant_id)s and event_key = %(event_key)s and plugin = %(plugin)s;

-- name: release_held_entries
-- Locks the rows. Index: outbox_entries_plugin_idx.
update outbox_entries set state = 'PENDING', due_time = now()
where tenant_id = %(tenant_id)s and plugin = %(name)s and state = 'HELD';

-- name: dead_letter_entry
-- Locks the row. Index: outbox_entries_pkey.
update outbox_entries set state = 'DEAD'
where tenant_id = %(tenant_id)s and event_key = %(event_key)s and plugin = %(plugin)s;

-- name: list_open_events
-- Takes no lock; exact while the events are locked. Those of the events that have an entry which is
-- not DEAD. Index: outbox_entries_pkey.
select distinct event_key from outbox_entries
where tenant_id = %(tenant_id)s and event_key = any (%(event_keys)s) and state <> 'DEAD';

-- name: clear_events
-- Locks the events, and clears their content. Index: observed_events_pkey.
update observed_events set event = ''
where tenant_id = %(tenant_id)s and event_key = any (%(event_keys)s) and event <> '';

-- name: lock_events
-- Locks the events in order, after their entries. Of two deliveries that end at the same time, the
-- second then sees in its next statement that the first has ended. Index: observed_events_pkey.
select from observed_events
where tenant_id = %(tenant_id)s and event_key = any (%(event_keys)s)
order by event_key for no key update;

-- name: delete_entries_of_plugin
-- Locks the rows. Index: outbox_entries_plugin_idx.
delete from outbox_entries where tenant_id = %(tenant_id)s and plugin = %(name)s returning event_key;
