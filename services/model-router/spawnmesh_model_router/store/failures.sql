-- name: add_failures
-- Locks the rows that it adds to, in the order of their key. No transaction of a model call locks
-- them. Adds nothing for a purged tenant. Index: failure_hours_pkey.
insert into failure_hours as f (
    tenant_id, hour_time, model, reason, failure_count, failover_count, end_count
)
select %(tenant_id)s, given.*
from unnest(
    %(hours)s::timestamptz[], %(models)s::text[], %(reasons)s::text[], %(failures)s::bigint[],
    %(failovers)s::bigint[], %(ends)s::bigint[]
) as given (hour_time, model, reason, failures, failovers, ends)
where not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
order by given.hour_time, given.model, given.reason
on conflict (tenant_id, hour_time, model, reason) do update
set failure_count = f.failure_count + excluded.failure_count,
    failover_count = f.failover_count + excluded.failover_count,
    end_count = f.end_count + excluded.end_count;

-- name: delete_past_hours
-- Locks the rows that it deletes. Index: failure_hours_pkey.
delete from failure_hours
where tenant_id = %(tenant_id)s and hour_time < %(first_kept)s::timestamptz;

-- name: list_failures
-- Takes no lock. Sums over the dimensions that are not wanted, which are empty. Reads all rows of
-- the span: at most some for each hour and model. Index: failure_hours_pkey.
with grouped as (
    select case when %(by_hour)s then hour_time else %(first)s::timestamptz end as hour_time,
           case when %(by_model)s then model else '' end as model,
           case when %(by_reason)s then reason else '' end as reason,
           failure_count, failover_count, end_count
    from failure_hours
    where tenant_id = %(tenant_id)s
      and hour_time between %(first)s::timestamptz and %(last)s::timestamptz
)
select hour_time, model, reason,
       sum(failure_count)::bigint as failures,
       sum(failover_count)::bigint as failovers,
       sum(end_count)::bigint as ends
from grouped
where (hour_time, model, reason)
    > (%(after_hour)s::timestamptz, %(after_model)s::text, %(after_reason)s::text)
   or %(is_first)s
group by hour_time, model, reason
order by hour_time, model, reason
limit %(limit)s;
