-- name: append_event
-- Locks the session. Index: sessions_pkey.
with next as (
    update sessions set last_event_number = last_event_number + 1
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    returning last_event_number
)
insert into session_events (tenant_id, session_id, number, kind, run_id, run_state, child_session_id, detail,
                            set_id)
select %(tenant_id)s, %(session_id)s, last_event_number, %(kind)s, %(run_id)s, %(run_state)s,
       %(child_session_id)s, %(detail)s, %(set_id)s
from next
returning number

-- name: notify_watchers
-- The session's watchers are notified when the transaction commits.
select pg_notify('session_changed' || (select suffix from _spawnmesh_channels),
                 %(tenant_id)s || ':' || %(session_id)s)

-- name: notify_watchers_and_waiters
-- The session's watchers, and the calls that wait until it is done, are notified when the
-- transaction commits.
select pg_notify('session_changed' || c.suffix, %(tenant_id)s || ':' || %(session_id)s),
       pg_notify('session_changed' || c.suffix, %(tenant_id)s || ':' || %(session_id)s || ':done')
from (select suffix from _spawnmesh_channels limit 1) c

-- name: list_events
-- Takes no lock. Index: session_events_pkey.
select number, event_time, kind, run_id, run_state, child_session_id, detail, set_id
from session_events
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and number > %(after_number)s
order by number limit 500

-- name: delete_events
-- Locks the rows. Index: session_events_pkey.
delete from session_events where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s)

-- name: prune_events
-- Locks the oldest rows, and skips those that are locked. Index: session_events_prune_idx,
-- session_events_pkey.
with oldest as (
    select session_id, number from session_events
    where tenant_id = %(tenant_id)s and event_time between '-infinity' and now() - %(older_than)s::interval
    order by event_time limit %(limit)s for update skip locked
)
delete from session_events e using oldest
where e.tenant_id = %(tenant_id)s and e.session_id = oldest.session_id and e.number = oldest.number
