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
-- since the backlog may be long. Indexes: outbox_entries_pending_idx, outbox_entries_pkey,
-- observed_events_pkey.
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
from due, observed_events e
where o.tenant_id = due.tenant_id and o.event_key = due.event_key and o.plugin = due.plugin
    and e.tenant_id = o.tenant_id and e.event_key = o.event_key
returning o.tenant_id, o.event_key, o.plugin, o.attempt_count, e.hook, e.event, e.traceparent;

-- name: seconds_to_next_entry
-- Takes no lock. Reads every tenant but the full ones. Index: outbox_entries_pending_idx.
select extract(epoch from min(due_time) - now())::float8 as seconds
from outbox_entries
where state = 'PENDING' and due_time >= '-infinity' and tenant_id <> all (%(full_tenants)s::text[]);

-- name: delete_entry
-- Locks the event's row first. Of two deliveries that end at the same time, the second then sees in
-- its next statement that the first has ended. Indexes: observed_events_pkey, outbox_entries_pkey.
with locked as (
    select tenant_id, event_key from observed_events
    where tenant_id = %(tenant_id)s and event_key = %(event_key)s
    for no key update
)
delete from outbox_entries o
using locked
where o.tenant_id = locked.tenant_id and o.event_key = locked.event_key and o.plugin = %(plugin)s;

-- name: delay_entry
-- Locks the row. Index: outbox_entries_pkey.
update outbox_entries set due_time = now() + %(delay)s::interval
where tenant_id = %(tenant_id)s and event_key = %(event_key)s and plugin = %(plugin)s;

-- name: hold_entry
-- Locks the plugin first, so that a resume either sees the held entry or is seen here. Does not
-- count as an attempt. Returns nothing if the plugin is not paused. Indexes: plugins_pkey,
-- outbox_entries_pkey.
with paused as (
    select tenant_id, name from plugins
    where tenant_id = %(tenant_id)s and name = %(plugin)s and paused
    for share
)
update outbox_entries o set state = 'HELD', attempt_count = o.attempt_count - 1
from paused
where o.tenant_id = paused.tenant_id and o.event_key = %(event_key)s and o.plugin = paused.name
returning o.plugin;

-- name: release_held_entries
-- Locks the rows. Index: outbox_entries_plugin_idx.
update outbox_entries set state = 'PENDING', due_time = now()
where tenant_id = %(tenant_id)s and plugin = %(name)s and state = 'HELD';

-- name: dead_letter_entry
-- Locks as `delete_entry` does. Indexes: observed_events_pkey, outbox_entries_pkey.
with locked as (
    select tenant_id, event_key from observed_events
    where tenant_id = %(tenant_id)s and event_key = %(event_key)s
    for no key update
)
update outbox_entries o set state = 'DEAD'
from locked
where o.tenant_id = locked.tenant_id and o.event_key = locked.event_key and o.plugin = %(plugin)s;

-- name: clear_delivered_event
-- Clears the content of an event that has no pending entry left. The statement before has locked
-- the event's row. Indexes: observed_events_pkey, outbox_entries_pkey.
update observed_events e set event = ''
where e.tenant_id = %(tenant_id)s and e.event_key = %(event_key)s
    and not exists (
        select from outbox_entries o
        where o.tenant_id = e.tenant_id and o.event_key = e.event_key and o.state <> 'DEAD'
    );

-- name: lock_events_of_plugin
-- Locks the events that the plugin has entries for, in order, so that the next statement sees which
-- other entries are left. Looks the events up one by one. The plugin is written as a range: only
-- one index gives that order to the planner. Indexes: outbox_entries_plugin_idx,
-- observed_events_pkey.
select from (
    select o.event_key from outbox_entries o
    where o.tenant_id = %(tenant_id)s and o.plugin between %(name)s and %(name)s
    order by o.plugin, o.event_key
) entry
cross join lateral (
    select from observed_events e
    where e.tenant_id = %(tenant_id)s and e.event_key = entry.event_key
    for no key update
) locked;

-- name: delete_entries_of_plugin
-- Locks the rows, and the events that have no other pending entry, whose content it clears.
-- Indexes: outbox_entries_plugin_idx, observed_events_pkey, outbox_entries_pkey.
with removed as (
    delete from outbox_entries
    where tenant_id = %(tenant_id)s and plugin = %(name)s
    returning tenant_id, event_key
)
update observed_events e set event = ''
from removed
where e.tenant_id = removed.tenant_id and e.event_key = removed.event_key
    and not exists (
        select from outbox_entries o
        where o.tenant_id = e.tenant_id and o.event_key = e.event_key and o.plugin <> %(name)s
            and o.state <> 'DEAD'
    );
