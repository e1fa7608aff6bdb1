-- name: add_delivery
-- Locks nothing that exists.
insert into deliveries
    (tenant_id, delivery_id, plugin, hook, session_id, run_id, start_time, latency, decision, error)
values
    (%(tenant_id)s, %(delivery_id)s, %(plugin)s, %(hook)s, %(session_id)s, %(run_id)s, %(start_time)s, %(latency)s,
     %(decision)s, %(error)s);

-- name: list_deliveries
-- No lock. Index: deliveries_newest_idx.
select plugin, hook, session_id, run_id, start_time, latency, decision, error
from deliveries
where tenant_id = %(tenant_id)s
order by start_time desc, delivery_id desc
limit %(limit)s;

-- name: list_deliveries_of_session
-- No lock. Index: deliveries_session_idx.
select plugin, hook, session_id, run_id, start_time, latency, decision, error
from deliveries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
order by start_time desc, delivery_id desc
limit %(limit)s;

-- name: add_heard_event
-- Locks nothing that exists. Index: heard_events_pkey.
insert into heard_events (tenant_id, event_key, plugin)
values (%(tenant_id)s, %(event_key)s, %(plugin)s)
on conflict do nothing;

-- name: list_heard
-- No lock. Index: heard_events_pkey.
select plugin from heard_events where tenant_id = %(tenant_id)s and event_key = %(event_key)s;
