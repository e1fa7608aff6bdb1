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

-- name: release_reservations
-- The row of the day is locked. Removes these reservations and those that have expired, and locks
-- them. Index: budget_reservations_pkey.
with released as (
    delete from budget_reservations
    where tenant_id = %(tenant_id)s
      and (reservation_id = any(%(reservation_ids)s::text[]) or expire_time <= now())
    returning day_time, spend_micros
)
update budget_periods b
set reserved_micros = greatest(b.reserved_micros - r.spend_micros, 0)
from (select day_time, sum(spend_micros)::bigint as spend_micros from released group by day_time) r
where b.tenant_id = %(tenant_id)s and b.period = 'DAY' and b.begin_time = r.day_time;

-- name: reserve_spending
-- The row of the day is locked, by a statement before: this one sees what others have reserved.
-- Reserves in order for each call before which the spending and the reservations are below its
-- limit, and returns these. Index: budget_periods_pkey.
with used as (
    select begin_time, spend_micros + reserved_micros as micros from budget_periods
    where tenant_id = %(tenant_id)s and period = 'DAY' and begin_time = date_trunc('day', now(), 'UTC')
), asked as (
    select reservation_id, spend_micros, spend_limit, seconds,
           coalesce(
               sum(spend_micros) over (order by place rows between unbounded preceding and 1 preceding), 0
           ) as before_micros
    from unnest(
        %(reservation_ids)s::text[], %(spend_micros)s::bigint[], %(spend_limits)s::bigint[],
        %(seconds)s::float8[]
    ) with ordinality as given (reservation_id, spend_micros, spend_limit, seconds, place)
), admitted as (
    select asked.*, used.begin_time from asked, used where used.micros + before_micros < spend_limit
), stored as (
    insert into budget_reservations (tenant_id, reservation_id, day_time, spend_micros, expire_time)
    select %(tenant_id)s, reservation_id, begin_time, spend_micros, now() + make_interval(secs => seconds)
    from admitted
    returning reservation_id
), held as (
    update budget_periods b set reserved_micros = b.reserved_micros + (select sum(spend_micros) from admitted)
    where b.tenant_id = %(tenant_id)s and b.period = 'DAY'
      and b.begin_time = (select min(begin_time) from admitted)
)
select reservation_id from stored;

-- name: delete_past_periods
-- Locks the rows that it deletes. Index: budget_periods_pkey. Keeps rows up to an hour longer than
-- they count, which costs nothing.
delete from budget_periods
where tenant_id = %(tenant_id)s
  and begin_time < now() - case when period = 'DAY' then interval '25 hours' else interval '1 hour' end;
