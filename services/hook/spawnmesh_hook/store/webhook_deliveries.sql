-- name: insert_message
-- Locks no existing row. Returns nothing for a known message. Index: webhook_deliveries_pkey.
insert into webhook_deliveries
    (tenant_id, webhook_id, event_id, event_type, session_id, run_id, event_time, body, state)
values
    (%(tenant_id)s, %(webhook_id)s, %(event_id)s, %(event_type)s, %(session_id)s, %(run_id)s,
     %(event_time)s, %(body)s, 'PENDING')
on conflict do nothing
returning event_id;

-- name: insert_test
-- Locks no existing row. Index: webhook_deliveries_pkey.
insert into webhook_deliveries
    (tenant_id, webhook_id, event_id, event_type, session_id, run_id, event_time, body, state, queue_time,
     end_time, round_attempt_count, attempt_count, attempts)
values
    (%(tenant_id)s, %(webhook_id)s, %(event_id)s, %(event_type)s, %(session_id)s, %(run_id)s,
     %(event_time)s, %(body)s, %(state)s, %(event_time)s, now(), 1, 1, %(attempts)s);

-- name: get_message
-- Takes no lock. Index: webhook_deliveries_pkey.
select event_id, event_type, session_id, run_id, event_time, body, state, queue_time, end_time, round,
    round_attempt_count, attempt_count, attempts
from webhook_deliveries
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and event_id = %(event_id)s;

-- name: record_attempt
-- Locks the row. Changes nothing if the message is not pending in this round any more. Index:
-- webhook_deliveries_pkey.
update webhook_deliveries
set state = %(state)s, end_time = case when %(state)s = 'PENDING' then null else now() end,
    round_attempt_count = round_attempt_count + 1, attempt_count = attempt_count + 1,
    attempts = (
        select jsonb_agg(one order by place)
        from jsonb_array_elements(attempts || %(attempts)s::jsonb) with ordinality as all_of (one, place)
        where place > jsonb_array_length(attempts) + 1 - %(kept)s
    )
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and event_id = %(event_id)s
    and state = 'PENDING' and round = %(round)s;

-- name: list_webhook_deliveries
-- Takes no lock. An empty condition does not filter. Looks at %(scan_limit)s deliveries at most,
-- whatever it finds. The last of these is a row with `is_end`, also if it does not match. Index:
-- webhook_deliveries_newest_idx.
select event_id, event_type, session_id, run_id, event_time, body, state, queue_time, end_time, round,
    round_attempt_count, attempt_count, attempts, is_match, place = %(scan_limit)s as is_end
from (
    select scanned.*,
        (%(session_id)s = '' or session_id = %(session_id)s)
            and (%(state)s = '' or state = %(state)s)
            and (%(event_type)s = '' or event_type = %(event_type)s) as is_match
    from (
        select *, row_number() over (order by event_time desc, event_id desc) as place
        from (
            select * from webhook_deliveries
            where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s
                and event_time >= %(start_time)s and event_time < %(end_time)s
                and (event_time, event_id) < (%(before_time)s, %(before_id)s)
            order by event_time desc, event_id desc
            limit %(scan_limit)s
        ) nearest
    ) scanned
) compared
where is_match or place = %(scan_limit)s
order by event_time desc, event_id desc
limit %(limit)s;

-- name: count_messages
-- Takes no lock. Index: webhook_deliveries_pkey.
select count(*) as message_count from webhook_deliveries
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and event_id = any (%(event_ids)s);

-- name: replay_messages
-- Locks the rows that it changes: those of the messages that are not pending. Index:
-- webhook_deliveries_pkey.
update webhook_deliveries
set state = 'PENDING', queue_time = now(), end_time = null, round = round + 1, round_attempt_count = 0
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and event_id = any (%(event_ids)s)
    and state <> 'PENDING'
returning event_id, round;

-- name: list_failed
-- Takes no lock. The oldest messages that were given up, of events since a time; no tests. Index:
-- webhook_deliveries_failed_idx.
select event_id from webhook_deliveries
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and state = 'FAILED'
    and event_time >= %(since)s and event_type <> 'webhook.test'
order by event_time, event_id limit %(limit)s;

-- name: hold_message
-- Ends the claim of the job, which does not count as an attempt. Locks the row. Index: jobs_pkey.
update jobs set due_time = 'infinity', claim_id = null, attempt_count = attempt_count - 1
where tenant_id = %(tenant_id)s and kind = 'deliver_webhook' and key = %(key)s and claim_id = %(claim_id)s;

-- name: release_held_messages
-- Notifies the workers when the transaction commits. Locks the rows. Index: jobs_webhook_idx.
with due as (
    update jobs set due_time = now()
    where tenant_id = %(tenant_id)s and webhook_id >= '' and webhook_id = %(webhook_id)s
      and due_time = 'infinity'
    returning key
)
select pg_notify('jobs' || (select suffix from _spawnmesh_channels), '') from due limit 1;

-- name: delete_messages_of_webhook
-- Locks the rows. Index: jobs_webhook_idx.
delete from jobs
where tenant_id = %(tenant_id)s and webhook_id >= '' and webhook_id = %(webhook_id)s;
