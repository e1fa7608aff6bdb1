-- name: count_requests
-- Locks the row of the current minute. Index: budget_periods_pkey. Counts the requests and returns
-- what the tenant has used. Returns no row for a purged tenant.
with minute as (
    insert into budget_periods as b (tenant_id, period, begin_time, request_count)
    select %(tenant_id)s, 'MINUTE', date_trunc('minute', now(), 'UTC'), %(request_count)s
    where not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
    on conflict (tenant_id, period, begin_time) do update
    set request_count = b.request_count + excluded.request_count
    returning request_count, token_count
)
select minute.request_count,
       minute.token_count,
       coalesce(day.spend_micros, 0) as spend_micros,
       extract(epoch from date_trunc('minute', now(), 'UTC') + interval '1 minute' - now())::float8
           as minute_left_seconds,
       extract(epoch from date_trunc('day', now(), 'UTC') + interval '1 day' - now())::float8
           as day_left_seconds
from minute
left join budget_periods day
       on day.tenant_id = %(tenant_id)s and day.period = 'DAY'
      and day.begin_time = date_trunc('day', now(), 'UTC');

-- name: charge_usage
-- Locks the row of the minute and the row of the day, always in this order. Changes nothing for a
-- purged tenant. Index: budget_periods_pkey.
insert into budget_periods as b (tenant_id, period, begin_time, token_count, spend_micros)
select %(tenant_id)s, given.period, date_trunc(lower(given.period), now(), 'UTC'), %(token_count)s,
    %(spend_micros)s
from (values ('MINUTE'), ('DAY')) as given (period)
where not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
on conflict (tenant_id, period, begin_time) do update
set token_count = b.token_count + excluded.token_count,
    spend_micros = b.spend_micros + excluded.spend_micros;

-- name: delete_past_periods
-- Locks the rows that it deletes. Index: budget_periods_pkey. Keeps rows up to an hour longer than
-- they count, which costs nothing.
delete from budget_periods
where tenant_id = %(tenant_id)s
  and begin_time < now() - case period when 'DAY' then interval '25 hours' else interval '1 hour' end;
