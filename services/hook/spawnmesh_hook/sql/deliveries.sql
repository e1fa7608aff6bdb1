-- name: add_delivery
-- Locks nothing that exists.
insert into deliveries
    (tenant_id, delivery_id, plugin, hook, session_id, run_id, start_time, latency, decision, error, attempt)
values
    (%(tenant_id)s, %(delivery_id)s, %(plugin)s, %(hook)s, %(session_id)s, %(run_id)s, %(start_time)s, %(latency)s,
     %(decision)s, %(error)s, %(attempt)s);

-- name: list_deliveries
-- No lock. An empty condition does not narrow. Index: deliveries_run_idx, deliveries_session_idx,
-- deliveries_plugin_idx or deliveries_newest_idx, by the narrowest condition.
select delivery_id, plugin, hook, session_id, run_id, start_time, latency, decision, error, attempt
from deliveries
where tenant_id = %(tenant_id)s
    and (%(session_id)s = '' or session_id = %(session_id)s)
    and (%(run_id)s = '' or run_id = %(run_id)s)
    and (%(plugin)s = '' or plugin = %(plugin)s)
    and (%(decision)s = '' or decision = %(decision)s)
    and start_time >= %(start_time)s and start_time < %(end_time)s
    and (start_time, delivery_id) < (%(before_time)s, %(before_id)s)
order by start_time desc, delivery_id desc
limit %(limit)s;

-- name: delete_old_deliveries
-- Locks the rows it deletes; in the scope of every tenant. Index: deliveries_age_idx.
delete from deliveries
where (tenant_id, delivery_id) in (
    select tenant_id, delivery_id from deliveries
    where start_time < now() - %(kept_for)s::interval limit %(limit)s for update skip locked
);

-- name: delete_old_decisions
-- Locks the rows it deletes; in the scope of every tenant. Index: decisions_age_idx.
delete from decisions
where (tenant_id, run_id, dispatch_key) in (
    select tenant_id, run_id, dispatch_key from decisions
    where decide_time < now() - %(kept_for)s::interval limit %(limit)s for update skip locked
);

-- name: delete_old_run_revisions
-- Locks the rows it deletes; in the scope of every tenant. Index: run_revisions_age_idx.
delete from run_revisions
where (tenant_id, run_id) in (
    select tenant_id, run_id from run_revisions
    where change_time < now() - %(kept_for)s::interval limit %(limit)s for update skip locked
);

-- name: delete_old_revision_keys
-- Locks the rows it deletes; in the scope of every tenant. Index: revision_keys_age_idx.
delete from revision_keys
where (tenant_id, run_id, plugin, idempotency_key) in (
    select tenant_id, run_id, plugin, idempotency_key from revision_keys
    where change_time < now() - %(kept_for)s::interval limit %(limit)s for update skip locked
);

-- name: delete_old_events
-- Locks the rows it deletes, their tellings with them; in the scope of every tenant. Index: observed_events_age_idx.
delete from observed_events
where (tenant_id, event_key) in (
    select tenant_id, event_key from observed_events
    where publish_time < now() - %(kept_for)s::interval limit %(limit)s for update skip locked
);
