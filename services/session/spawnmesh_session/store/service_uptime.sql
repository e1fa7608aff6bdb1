-- name: record_heartbeat
-- Locks the one row of the service. The time of the database decides, after the wait for the lock.
-- A heartbeat after a break begins a new time of service. Index: service_uptime_pkey.
insert into service_uptime as u (serving_since, serves_until)
values (clock_timestamp(), clock_timestamp() + %(longest_break)s::interval)
on conflict (is_only) do update
set serving_since = case when u.serves_until > clock_timestamp()
                         then u.serving_since else clock_timestamp() end,
    serves_until = clock_timestamp() + %(longest_break)s::interval
