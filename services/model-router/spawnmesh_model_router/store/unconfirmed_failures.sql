-- name: lock_failures
-- Makes the replicas read and write the table one after the other, until the transaction ends.
select pg_advisory_xact_lock(hashtextextended(current_schema() || ' unconfirmed failures', 0));

-- name: list_failures
-- Takes no lock. Index: none; the table has at most one row for each model, credential and
-- provider.
select scope, target, failed_tenant_id, reason, failure_time
from unconfirmed_failures
where tenant_id = '*';

-- name: put_failure
-- Locks the row. Index: unconfirmed_failures_pkey.
insert into unconfirmed_failures (tenant_id, scope, target, failed_tenant_id, reason, failure_time)
values ('*', %(scope)s, %(target)s, %(failed_tenant_id)s, %(reason)s, %(failure_time)s)
on conflict (tenant_id, scope, target) do update
set failed_tenant_id = excluded.failed_tenant_id,
    reason = excluded.reason,
    failure_time = excluded.failure_time;

-- name: delete_failure
-- Locks the row. Index: unconfirmed_failures_pkey.
delete from unconfirmed_failures where tenant_id = '*' and scope = %(scope)s and target = %(target)s;
