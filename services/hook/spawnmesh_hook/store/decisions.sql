-- name: claim_draft
-- Locks the row if it exists. Takes it over only after its lease: the time of the row that is not
-- inserted is now(). Index: decisions_pkey.
insert into decisions as d (tenant_id, run_id, request_id, state, claim_id, lease_until)
values (%(tenant_id)s, %(run_id)s, %(request_id)s, 'CLAIMED', %(claim_id)s, now() + %(lease)s)
on conflict (tenant_id, run_id, request_id) do update
set claim_id = excluded.claim_id, lease_until = excluded.lease_until
where d.state = 'CLAIMED' and d.lease_until < excluded.decide_time
returning claim_id;

-- name: get_decision
-- Takes no lock. Index: decisions_pkey.
select answer, reason, decided_by, revision_number, capped_revisions
from decisions
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and request_id = %(request_id)s
    and state = 'DECIDED';

-- name: is_claimed_or_decided
-- Takes no lock. Index: decisions_pkey.
select from decisions
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and request_id = %(request_id)s;

-- name: lock_claim
-- Locks the row if the claim still holds it. Index: decisions_pkey.
select claim_id
from decisions
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and request_id = %(request_id)s
    and state = 'CLAIMED' and claim_id = %(claim_id)s
for update;

-- name: store_decision
-- Updates the row that lock_claim has locked. Index: decisions_pkey.
update decisions
set state = 'DECIDED', answer = %(answer)s, reason = %(reason)s, decided_by = %(decided_by)s,
    revision_number = %(revision_number)s, capped_revisions = %(capped_revisions)s
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and request_id = %(request_id)s
    and claim_id = %(claim_id)s;

-- name: release_claim
-- Locks the row. Index: decisions_pkey.
delete from decisions
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and request_id = %(request_id)s
    and state = 'CLAIMED' and claim_id = %(claim_id)s;

-- name: notify_claim_ended
-- Delivered when the transaction commits.
select pg_notify(%(channel)s || (select suffix from _spawnmesh_channels), %(topic)s);

-- name: count_revision
-- Locks the run's row. Returns nothing if the run has no revision left. Index: run_revisions_pkey.
insert into run_revisions as r (tenant_id, run_id, revision_count)
values (%(tenant_id)s, %(run_id)s, 1)
on conflict (tenant_id, run_id) do update
set revision_count = r.revision_count + 1, change_time = excluded.change_time
where r.revision_count < %(max_revision_count)s
returning revision_count;

-- name: get_revision_count
-- Takes no lock. Index: run_revisions_pkey.
select revision_count from run_revisions where tenant_id = %(tenant_id)s and run_id = %(run_id)s;

-- name: lock_run_revisions
-- Serializes the decisions about one run until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('revisions of ' || %(tenant_id)s || ' ' || %(run_id)s, 0));

-- name: list_key_attempts
-- Takes no lock. Index: revision_keys_pkey.
select plugin, objection_key, attempt_count
from revision_keys
where tenant_id = %(tenant_id)s and run_id = %(run_id)s;

-- name: count_key_attempt
-- Locks the row. Index: revision_keys_pkey.
insert into revision_keys as k (tenant_id, run_id, plugin, objection_key, attempt_count)
values (%(tenant_id)s, %(run_id)s, %(plugin)s, %(objection_key)s, 1)
on conflict (tenant_id, run_id, plugin, objection_key) do update
set attempt_count = k.attempt_count + 1, change_time = excluded.change_time;
