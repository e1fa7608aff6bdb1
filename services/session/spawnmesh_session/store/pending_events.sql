-- name: insert_pending_event
-- Does nothing if the event is pending already. Notifies the relay when the transaction commits.
-- Index: work_queue_pkey.
with waiting as (
    insert into work_queue (tenant_id, kind, subject_id, due_time, expire_time, attempts_left, details)
    values (%(tenant_id)s, 'EVENT', %(subject_id)s, now(), now() + %(kept_for)s::interval, %(attempts_left)s,
            %(details)s)
    on conflict (tenant_id, kind, subject_id) do nothing
    returning tenant_id
)
select pg_notify('event_pending', '') from waiting

-- name: delay_pending_event
-- Locks the row: it waits as long again as it has waited since its insertion, within bounds, and
-- has %(used)s tries less. Index: work_queue_pkey.
update work_queue set
    due_time = now() + least(greatest(now() - (expire_time - %(kept_for)s::interval), %(at_least)s::interval),
                             %(at_most)s::interval),
    attempts_left = attempts_left - %(used)s
where tenant_id = %(tenant_id)s and kind = 'EVENT' and subject_id = %(subject_id)s
returning expire_time <= now() as is_expired

-- name: drop_pending_events
-- Locks the rows. Index: work_queue_pkey.
delete from work_queue where tenant_id = %(tenant_id)s and kind = 'EVENT'
