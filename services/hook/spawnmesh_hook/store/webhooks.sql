-- name: lock_webhook_tenant
-- Locks the tenant's settings, so that one transaction after the other counts and adds webhooks.
-- Index: tenants_pkey.
select settings_version from tenants where tenant_id = %(tenant_id)s for update;

-- name: count_webhooks
-- Takes no lock. A separate statement after lock_webhook_tenant, so that it sees what was committed
-- while that waited. Index: webhooks_pkey.
select count(*) as webhook_count from webhooks where tenant_id = %(tenant_id)s;

-- name: get_webhook
-- Takes no lock. Index: webhooks_pkey.
select name, webhook_id, url, event_types, timeout, paused, pause_reason, failing_since, failure_count,
    retry_time, resume_time, secret_number, previous_secret_until, rotation_id, generation, create_time
from webhooks where tenant_id = %(tenant_id)s and name = %(name)s;

-- name: get_webhook_by_id
-- Takes no lock. Index: webhooks_id_idx.
select name, webhook_id, url, event_types, timeout, paused, pause_reason, failing_since, failure_count,
    retry_time, resume_time, secret_number, previous_secret_until, rotation_id, generation, create_time
from webhooks where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s;

-- name: lock_webhook
-- Locks the row until the transaction ends. Index: webhooks_pkey.
select name, webhook_id, url, event_types, timeout, paused, pause_reason, failing_since, failure_count,
    retry_time, resume_time, secret_number, previous_secret_until, rotation_id, generation, create_time
from webhooks where tenant_id = %(tenant_id)s and name = %(name)s for update;

-- name: lock_webhook_by_id
-- Locks the row until the transaction ends. Index: webhooks_id_idx.
select name, webhook_id, url, event_types, timeout, paused, pause_reason, failing_since, failure_count,
    retry_time, resume_time, secret_number, previous_secret_until, rotation_id, generation, create_time
from webhooks where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s for update;

-- name: list_webhooks
-- Takes no lock. Index: webhooks_pkey. A tenant has few webhooks.
select name, webhook_id, url, event_types, timeout, paused, pause_reason, failing_since, failure_count,
    retry_time, resume_time, secret_number, previous_secret_until, rotation_id, generation, create_time
from webhooks where tenant_id = %(tenant_id)s order by name;

-- name: insert_webhook
-- The caller holds the lock of the tenant. Index: webhooks_pkey.
insert into webhooks (tenant_id, name, webhook_id, url, event_types, timeout)
values (%(tenant_id)s, %(name)s, %(webhook_id)s, %(url)s, %(event_types)s, %(timeout)s)
returning name, webhook_id, url, event_types, timeout, paused, pause_reason, failing_since, failure_count,
    retry_time, resume_time, secret_number, previous_secret_until, rotation_id, generation, create_time;

-- name: update_webhook
-- The caller has locked the row. Another address counts as not failing. Index: webhooks_pkey.
update webhooks
set url = %(url)s, event_types = %(event_types)s, timeout = %(timeout)s, generation = generation + 1,
    failing_since = case when url = %(url)s then failing_since end,
    failure_count = case when url = %(url)s then failure_count else 0 end,
    retry_time = case when url = %(url)s then retry_time end
where tenant_id = %(tenant_id)s and name = %(name)s
returning name, webhook_id, url, event_types, timeout, paused, pause_reason, failing_since, failure_count,
    retry_time, resume_time, secret_number, previous_secret_until, rotation_id, generation, create_time;

-- name: rotate_secret
-- The caller has locked the row. Index: webhooks_pkey.
update webhooks
set secret_number = %(secret_number)s, previous_secret_until = %(previous_secret_until)s,
    rotation_id = %(rotation_id)s, generation = generation + 1
where tenant_id = %(tenant_id)s and name = %(name)s
returning name, webhook_id, url, event_types, timeout, paused, pause_reason, failing_since, failure_count,
    retry_time, resume_time, secret_number, previous_secret_until, rotation_id, generation, create_time;

-- name: pause_webhook
-- Locks the row. Index: webhooks_pkey.
update webhooks set paused = true, generation = generation + 1
where tenant_id = %(tenant_id)s and name = %(name)s and not paused;

-- name: resume_webhook
-- Locks the row. Index: webhooks_pkey.
update webhooks
set paused = false, pause_reason = '', failing_since = null, failure_count = 0, retry_time = null,
    resume_time = now(), generation = generation + 1
where tenant_id = %(tenant_id)s and name = %(name)s and (paused or failing_since is not null);

-- name: delete_webhook
-- The caller has locked the row. Index: webhooks_pkey.
delete from webhooks where tenant_id = %(tenant_id)s and name = %(name)s;

-- name: record_success
-- Locks the row if it changes: the webhook received a message, and had failed. Index:
-- webhooks_id_idx.
update webhooks set failing_since = null, failure_count = 0, retry_time = null
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and failing_since < %(start_time)s;

-- name: record_failure
-- Locks the row. Changes nothing if the webhook was changed, resumed or rotated since it was read.
-- Index: webhooks_id_idx.
update webhooks
set failing_since = coalesce(failing_since, %(start_time)s),
    failure_count = failure_count + (case when retry_time > %(start_time)s then 0 else 1 end),
    retry_time = greatest(retry_time, %(retry_time)s),
    paused = paused or %(pause_reason)s <> '',
    pause_reason = case when paused then pause_reason else %(pause_reason)s end,
    generation = generation + (case when not paused and %(pause_reason)s <> '' then 1 else 0 end)
where tenant_id = %(tenant_id)s and webhook_id = %(webhook_id)s and generation = %(generation)s;
