-- name: add_event
-- Locks nothing that exists; returns nothing for a known key. Index: observed_events_pkey.
insert into observed_events (tenant_id, event_key, hook, session_id, run_id, event, traceparent)
values (%(tenant_id)s, %(event_key)s, %(hook)s, %(session_id)s, %(run_id)s, %(event)s, %(traceparent)s)
on conflict do nothing
returning event_key;

-- name: add_tellings
-- Locks nothing that exists.
insert into tellings (tenant_id, event_key, plugin)
select %(tenant_id)s, %(event_key)s, unnest(%(plugins)s::text[]);

-- name: announce_outbox
-- Wakes the workers when the transaction commits.
select pg_notify(%(channel)s, '');

-- name: take_due_tellings
-- Locks the rows it takes and skips those another worker is taking; in the scope of every tenant. A taken one is due again when the time it may
-- take is over. Leaves out the tenants that are `full`; see the function. Index: tellings_waiting_idx, tellings_pkey, observed_events_pkey.
with due as materialized (
    select tenant_id, event_key, plugin from due_tellings(%(limit)s, %(full)s::text[])
)
update tellings t
set due_time = now() + %(held_for)s::interval, attempt_count = t.attempt_count + 1
from due, observed_events e
where t.tenant_id = due.tenant_id and t.event_key = due.event_key and t.plugin = due.plugin
    and e.tenant_id = t.tenant_id and e.event_key = t.event_key
returning t.tenant_id, t.event_key, t.plugin, t.attempt_count, e.hook, e.event, e.traceparent;

-- name: seconds_to_next_telling
-- No lock; in the scope of every tenant, of which it leaves out those that are `full`. Index: tellings_waiting_idx.
select extract(epoch from min(due_time) - now())::float8 as seconds
from tellings
where state = 'WAITING' and due_time >= '-infinity' and tenant_id <> all (%(full)s::text[]);

-- name: told
-- Locks the event's row and then this one, so that of two who hear at once the second sees in its next statement that the first has.
-- Index: observed_events_pkey, tellings_pkey.
with held as (
    select tenant_id, event_key from observed_events
    where tenant_id = %(tenant_id)s and event_key = %(event_key)s
    for no key update
)
delete from tellings t
using held
where t.tenant_id = held.tenant_id and t.event_key = held.event_key and t.plugin = %(plugin)s;

-- name: empty_event
-- Locks the event's row, which the statement before has locked already, and keeps what it says only while somebody is still to be told.
-- Index: observed_events_pkey, tellings_pkey.
update observed_events e set event = ''
where e.tenant_id = %(tenant_id)s and e.event_key = %(event_key)s
    and not exists (
        select from tellings t
        where t.tenant_id = e.tenant_id and t.event_key = e.event_key and t.state = 'WAITING'
    );

-- name: tell_again
-- Locks the row. Index: tellings_pkey.
update tellings set due_time = now() + %(pause)s::interval
where tenant_id = %(tenant_id)s and event_key = %(event_key)s and plugin = %(plugin)s;

-- name: bury
-- Locks as `told` does. Index: observed_events_pkey, tellings_pkey.
with held as (
    select tenant_id, event_key from observed_events
    where tenant_id = %(tenant_id)s and event_key = %(event_key)s
    for no key update
)
update tellings t set state = 'DEAD'
from held
where t.tenant_id = held.tenant_id and t.event_key = held.event_key and t.plugin = %(plugin)s;
