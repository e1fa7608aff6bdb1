-- name: claim_asking
-- Locks the row when it exists; takes it over only from an asker whose time is up. Index: decisions_pkey.
insert into decisions as d (tenant_id, run_id, dispatch_key, state, asker, asking_until)
values (%(tenant_id)s, %(run_id)s, %(dispatch_key)s, 'ASKING', %(asker)s, now() + %(asking_for)s)
on conflict (tenant_id, run_id, dispatch_key) do update
set asker = excluded.asker, asking_until = excluded.asking_until
where d.state = 'ASKING' and d.asking_until < now()
returning asker;

-- name: get_decision
-- No lock. Index: decisions_pkey.
select answer, reason, decided_by, revision_number, capped
from decisions
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and dispatch_key = %(dispatch_key)s and state = 'DECIDED';

-- name: is_asked
-- No lock. Index: decisions_pkey.
select from decisions where tenant_id = %(tenant_id)s and run_id = %(run_id)s and dispatch_key = %(dispatch_key)s;

-- name: lock_asking
-- Locks the row for the asker that still holds it. Index: decisions_pkey.
select asker
from decisions
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and dispatch_key = %(dispatch_key)s
    and state = 'ASKING' and asker = %(asker)s
for update;

-- name: decide
-- The row is locked by lock_asking or was written in this transaction. Index: decisions_pkey.
update decisions
set state = 'DECIDED', answer = %(answer)s, reason = %(reason)s, decided_by = %(decided_by)s,
    revision_number = %(revision_number)s, capped = %(capped)s
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and dispatch_key = %(dispatch_key)s and asker = %(asker)s;

-- name: give_up_asking
-- Locks the row. Index: decisions_pkey.
delete from decisions
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and dispatch_key = %(dispatch_key)s
    and state = 'ASKING' and asker = %(asker)s;

-- name: announce_asking_ended
-- Wakes those who wait for the decision, once the transaction has committed.
select pg_notify(%(channel)s, %(topic)s);

-- name: count_revision
-- Locks the run's row; returns nothing when the run has had its most. Index: run_revisions_pkey.
insert into run_revisions as r (tenant_id, run_id, revision_count)
values (%(tenant_id)s, %(run_id)s, 1)
on conflict (tenant_id, run_id) do update
set revision_count = r.revision_count + 1, change_time = now()
where r.revision_count < %(max_revision_count)s
returning revision_count;

-- name: get_revision_count
-- No lock. Index: run_revisions_pkey.
select revision_count from run_revisions where tenant_id = %(tenant_id)s and run_id = %(run_id)s;

-- name: spent_keys
-- No lock. Index: revision_keys_pkey.
select plugin, idempotency_key, attempt_count from revision_keys where tenant_id = %(tenant_id)s and run_id = %(run_id)s;

-- name: count_key
-- Locks the row. Index: revision_keys_pkey.
insert into revision_keys as k (tenant_id, run_id, plugin, idempotency_key, attempt_count)
values (%(tenant_id)s, %(run_id)s, %(plugin)s, %(idempotency_key)s, 1)
on conflict (tenant_id, run_id, plugin, idempotency_key) do update set attempt_count = k.attempt_count + 1, change_time = now();

-- name: lock_run_revisions
-- Serialises the decisions about one run: the lock lasts until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('revisions of ' || %(tenant_id)s || ' ' || %(run_id)s, 0));
