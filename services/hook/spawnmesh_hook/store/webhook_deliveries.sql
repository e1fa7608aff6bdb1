-- name: insert_messages
-- Locks no existing row. Returns the messages that were not known. Index: webhook_deliveries_pkey.
insert into webhook_deliveries
    (tenant_id, webhook_id, event_id, event_type, session_id, run_id, event_time, body, state, attempt_time)
select %(tenant_id)s, m.webhook_id, m.event_id, m.event_type, m.session_id, m.run_id, m.event_time, m.body,
    'PENDING', now()
from jsonb_to_recordset(%(messages)s::jsonb)
    as m (webhook_id text, event_id text, event_type text, session_id text, run_id text,
          event_time timestamptz, body text)
on conflict do nothing
returning webhook_id;

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
select event_id, event_type, session_id, run_id, event_time, body, state, queue_time, attempt_time, end_time,
    round, round_attempt_count, attempt_count, attempts
from webhook_deliveries
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and event_id = %(event_id)s;

-- name: list_due_messages
-- Takes no lock. The messages that are due, in the order of their times. Index:
-- webhook_deliveries_due_idx.
select event_id, event_type, session_id, run_id, event_time, body, state, queue_time, attempt_time, end_time,
    round, round_attempt_count, attempt_count, attempts
from webhook_deliveries
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and state = 'PENDING'
    and attempt_time <= now()
order by attempt_time, event_id limit %(limit)s;

-- name: next_attempt_time
-- Takes no lock. Index: webhook_deliveries_due_idx.
select attempt_time, now() as read_time from webhook_deliveries
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and state = 'PENDING'
order by attempt_time, event_id limit 1;

-- name: record_attempt
-- Locks the row. Changes nothing if the message is not pending in this round any more. Index:
-- webhook_deliveries_pkey.
update webhook_deliveries
set state = %(state)s, attempt_time = %(attempt_time)s, end_time = %(end_time)s,
    round_attempt_count = round_attempt_count + 1, attempt_count = attempt_count + 1, attempts = %(attempts)s
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and event_id = %(event_id)s
    and state = 'PENDING' and round = %(round)s;

-- name: expire_messages
-- Locks the rows. Gives up messages whose day is over, and that were not sent since the webhook
-- fails. Updates by a list of keys: a join may compare each with each. Indexes:
-- webhook_deliveries_due_idx, webhook_deliveries_pkey.
update webhook_deliveries
set state = 'FAILED', attempt_time = null, end_time = now()
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and state = 'PENDING'
    and event_id = any (array(
        select event_id from webhook_deliveries
        where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and state = 'PENDING'
            and attempt_time <= now() and queue_time < %(queued_before)s
        order by attempt_time, event_id limit %(limit)s
    ))
returning event_id;

-- name: list_webhook_deliveries
-- Takes no lock. An empty condition does not filter. Looks at %(scan_limit)s deliveries at most,
-- whatever it finds. The last of these is a row with `is_end`, also if it does not match. Index:
-- webhook_deliveries_newest_idx.
select event_id, event_type, session_id, run_id, event_time, body, state, queue_time, attempt_time, end_time,
    round, round_attempt_count, attempt_count, attempts, is_match, place = %(scan_limit)s as is_end
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
-- Locks the rows that it changes: those of the messages that are not pending. A test is sent once.
-- Index: webhook_deliveries_pkey.
update webhook_deliveries
set state = 'PENDING', queue_time = now(), attempt_time = now(), end_time = null, round = round + 1,
    round_attempt_count = 0
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and event_id = any (%(event_ids)s)
    and state <> 'PENDING' and event_type <> 'webhook.test';

-- name: list_failed
-- Takes no lock. The oldest messages that were given up, of events since a time; no tests. Index:
-- webhook_deliveries_failed_idx.
select event_id from webhook_deliveries
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and state = 'FAILED'
    and event_time >= %(since)s and event_type <> 'webhook.test'
order by event_time, event_id limit %(limit)s;

-- name: hasten_messages
-- Locks the rows. Makes the messages due that were to be sent again later. Index:
-- webhook_deliveries_due_idx.
update webhook_deliveries set attempt_time = now()
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and state = 'PENDING'
    and attempt_time > now();

-- name: wake_jobs
-- Inserts the jobs of webhooks, or makes them due. Locks each row until the transaction ends, also
-- that of a job which a worker has claimed: the end of the job then sees what was written before.
-- The worker is notified when the transaction commits. Index: jobs_pkey.
with woken as (
    insert into jobs as j (tenant_id, kind, key, traceparent)
    select %(tenant_id)s, 'deliver_webhook', w.webhook_id, %(traceparent)s
    from unnest(%(webhook_ids)s::text[]) as w (webhook_id)
    on conflict (tenant_id, kind, key) do update
    set due_time = case when j.claim_id is null then least(j.due_time, now()) else j.due_time end
    returning kind
)
select pg_notify('jobs' || (select suffix from _spawnmesh_channels), kind) from woken limit 1;
