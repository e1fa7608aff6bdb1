-- name: list_tenants
-- Takes no lock; reads in the scope of every tenant. A page of the tenants after one.
-- Index: tenant_work_pkey.
select tenant_id from tenant_work where tenant_id > %(after_id)s order by tenant_id limit %(limit)s;

-- name: delete_old
-- Locks the rows that it deletes: those of the `{table}` up to the `{time}` of the last one of a
-- page, and so a few more than the limit where several rows have that time. Indexes:
-- deliveries_newest_idx, decisions_age_idx, run_revisions_age_idx, revision_keys_age_idx,
-- plugin_waits_age_idx, allowed_spawns_age_idx, observed_events_age_idx and
-- webhook_deliveries_age_idx.
with page as (
    select {time} from {table}
    where tenant_id = %(tenant_id)s and {time} between '-infinity' and now() - %(retention)s::interval
    order by {time} limit %(limit)s
)
delete from {table}
where tenant_id = %(tenant_id)s and {time} between '-infinity' and (select max({time}) from page)
{returning};

-- name: delete_deliveries_of_events
-- Locks the rows. Index: jobs_event_idx.
delete from jobs
where tenant_id = %(tenant_id)s and event_key >= '' and event_key = any (%(event_keys)s::text[]);
