-- name: list_cooldowns
-- Takes no lock. Index: cooldowns_until_idx. Row-level security selects the tenants.
select tenant_id, scope, target, until_time, failure_count, reason, counted_time, last_failure_time
from cooldowns
where until_time > now() - %(forget_after)s::interval;

-- name: get_cooldown
-- Takes no lock. Index: cooldowns_pkey.
select tenant_id, scope, target, until_time, failure_count, reason, counted_time, last_failure_time
from cooldowns
where tenant_id = %(tenant_id)s and scope = %(scope)s and target = %(target)s;

-- name: extend_cooldown
-- Locks the row. Index: cooldowns_pkey. The later deadline wins, with its reason and count, so
-- replicas that fail at the same time cannot shorten a cooldown. A failure during a cooldown that
-- it does not lengthen still counts: domain.cooldown.merge. The transaction has seen that
-- the tenant is not purged.
insert into cooldowns as c
    (tenant_id, scope, target, until_time, failure_count, reason, counted_time, last_failure_time)
values (%(tenant_id)s, %(scope)s, %(target)s, %(until_time)s, %(failure_count)s, %(reason)s,
    %(counted_time)s, %(last_failure_time)s)
on conflict (tenant_id, scope, target) do update
set until_time = greatest(c.until_time, excluded.until_time),
    failure_count = case when excluded.until_time > c.until_time then excluded.failure_count
                         when excluded.until_time = c.until_time
                         then greatest(c.failure_count, excluded.failure_count)
                         else c.failure_count end,
    reason = case when excluded.until_time > c.until_time then excluded.reason else c.reason end,
    counted_time = case when excluded.until_time > c.until_time then excluded.counted_time
                        when excluded.until_time = c.until_time
                        then greatest(c.counted_time, excluded.counted_time)
                        else c.counted_time end,
    last_failure_time = greatest(c.last_failure_time, excluded.last_failure_time);

-- name: end_cooldown
-- Locks the row. Index: cooldowns_pkey. A success says nothing about a failure that happened after
-- the successful call began, so that row stays.
delete from cooldowns
where tenant_id = %(tenant_id)s and scope = %(scope)s and target = %(target)s
  and last_failure_time < %(begin_time)s;

-- name: delete_cooldown
-- Locks the row. Index: cooldowns_pkey.
delete from cooldowns
where tenant_id = %(tenant_id)s and scope = %(scope)s and target = %(target)s;

-- name: delete_forgotten
-- Deletes rows whose failure counts no longer matter. Locks them, and skips those that another
-- replica holds, so that two replicas cannot deadlock. Index: cooldowns_pkey.
delete from cooldowns
where (tenant_id, scope, target) in (
    select tenant_id, scope, target from cooldowns
    where tenant_id = %(tenant_id)s and until_time <= now() - %(forget_after)s::interval
    for update skip locked
);

-- name: notify_cooldowns
-- Notifies every replica once the transaction has committed.
select pg_notify('model_router_cooldowns' || suffix, '') from _spawnmesh_channels;
