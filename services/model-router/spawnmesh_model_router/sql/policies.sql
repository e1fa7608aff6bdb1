-- name: read_policy
-- No lock. Index: tenant_policies_pkey.
select blind_model_policy, stop_after_side_effects, max_tries, requests_per_minute, tokens_per_minute, spend_micros_per_day
from tenant_policies
where tenant_id = %(tenant_id)s;

-- name: write_policy
-- Locks the row. Index: tenant_policies_pkey. The newest version wins, in whatever order they come; gives the one that holds.
with written as (
    insert into tenant_policies as p
        (tenant_id, settings_version, blind_model_policy, stop_after_side_effects, max_tries,
         requests_per_minute, tokens_per_minute, spend_micros_per_day)
    values
        (%(tenant_id)s, %(settings_version)s, %(blind_model_policy)s, %(stop_after_side_effects)s, %(max_tries)s,
         %(requests_per_minute)s, %(tokens_per_minute)s, %(spend_micros_per_day)s)
    on conflict (tenant_id) do update
    set settings_version = excluded.settings_version,
        blind_model_policy = excluded.blind_model_policy,
        stop_after_side_effects = excluded.stop_after_side_effects,
        max_tries = excluded.max_tries,
        requests_per_minute = excluded.requests_per_minute,
        tokens_per_minute = excluded.tokens_per_minute,
        spend_micros_per_day = excluded.spend_micros_per_day
    where p.settings_version < excluded.settings_version
    returning settings_version
)
select settings_version from written
union all
select settings_version from tenant_policies where tenant_id = %(tenant_id)s
order by settings_version desc
limit 1;

-- name: announce_policies
-- Tells every replica, once the transaction has committed.
select pg_notify('model_router_policies', '');

-- name: take_requests
-- Locks the minute's row. Index: budget_periods_pkey. Counts requests, and gives what is used up by now.
with minute as (
    insert into budget_periods as b (tenant_id, period, begin_time, request_count)
    values (%(tenant_id)s, 'MINUTE', date_trunc('minute', now(), 'UTC'), %(request_count)s)
    on conflict (tenant_id, period, begin_time) do update set request_count = b.request_count + excluded.request_count
    returning request_count, token_count
)
select minute.request_count,
       minute.token_count,
       coalesce(day.spend_micros, 0) as spend_micros,
       extract(epoch from date_trunc('minute', now(), 'UTC') + interval '1 minute' - now())::float8 as minute_left_seconds,
       extract(epoch from date_trunc('day', now(), 'UTC') + interval '1 day' - now())::float8 as day_left_seconds
from minute
left join budget_periods day
       on day.tenant_id = %(tenant_id)s and day.period = 'DAY' and day.begin_time = date_trunc('day', now(), 'UTC');

-- name: charge
-- Locks the minute's and the day's row, always in this order. Index: budget_periods_pkey.
insert into budget_periods as b (tenant_id, period, begin_time, token_count, spend_micros)
values (%(tenant_id)s, 'MINUTE', date_trunc('minute', now(), 'UTC'), %(token_count)s, %(spend_micros)s),
       (%(tenant_id)s, 'DAY', date_trunc('day', now(), 'UTC'), %(token_count)s, %(spend_micros)s)
on conflict (tenant_id, period, begin_time) do update
set token_count = b.token_count + excluded.token_count,
    spend_micros = b.spend_micros + excluded.spend_micros;

-- name: forget_periods
-- Locks what it deletes. Index: budget_periods_pkey. A minute is over after a minute, a day after a day; an hour's grace costs nothing.
delete from budget_periods
where tenant_id = %(tenant_id)s
  and begin_time < now() - case period when 'DAY' then interval '25 hours' else interval '1 hour' end;
