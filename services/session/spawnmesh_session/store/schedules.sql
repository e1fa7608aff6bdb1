-- name: count_schedules
-- Takes no lock; the caller has locked the tenant. Index: schedules_pkey.
select count(*) as schedule_count from schedules where tenant_id = %(tenant_id)s

-- name: get_schedule
-- Takes no lock. Index: schedules_pkey.
select name, cron, time_zone, spawn, overlap, catch_up, schedule_id, paused, cursor_time, session_ids,
    busy_until, version, create_time, updated_by
from schedules where tenant_id = %(tenant_id)s and name = %(name)s

-- name: lock_schedule
-- Locks the schedule. Index: schedules_pkey.
select name, cron, time_zone, spawn, overlap, catch_up, schedule_id, paused, cursor_time, session_ids,
    busy_until, version, create_time, updated_by
from schedules where tenant_id = %(tenant_id)s and name = %(name)s for update

-- name: lock_schedule_by_id
-- Locks the schedule. Index: schedules_id_idx.
select name, cron, time_zone, spawn, overlap, catch_up, schedule_id, paused, cursor_time, session_ids,
    busy_until, version, create_time, updated_by
from schedules where tenant_id = %(tenant_id)s and schedule_id = %(schedule_id)s for update

-- name: list_schedules
-- Takes no lock. A tenant has few schedules. Index: schedules_pkey.
select name, cron, time_zone, spawn, overlap, catch_up, schedule_id, paused, cursor_time, session_ids,
    busy_until, version, create_time, updated_by
from schedules where tenant_id = %(tenant_id)s order by name

-- name: insert_schedule
-- The caller has locked the tenant. Index: schedules_pkey.
insert into schedules (tenant_id, name, schedule_id, cron, time_zone, spawn, overlap, catch_up, cursor_time,
    updated_by)
values (%(tenant_id)s, %(name)s, %(schedule_id)s, %(cron)s, %(time_zone)s, %(spawn)s, %(overlap)s,
    %(catch_up)s, %(cursor_time)s, %(updated_by)s)
returning name, cron, time_zone, spawn, overlap, catch_up, schedule_id, paused, cursor_time, session_ids,
    busy_until, version, create_time, updated_by

-- name: update_schedule
-- The caller has locked the schedule. Index: schedules_pkey.
update schedules
set cron = %(cron)s, time_zone = %(time_zone)s, spawn = %(spawn)s, overlap = %(overlap)s,
    catch_up = %(catch_up)s, cursor_time = %(cursor_time)s, updated_by = %(updated_by)s, version = version + 1
where tenant_id = %(tenant_id)s and name = %(name)s
returning name, cron, time_zone, spawn, overlap, catch_up, schedule_id, paused, cursor_time, session_ids,
    busy_until, version, create_time, updated_by

-- name: set_paused
-- The caller has locked the schedule. Index: schedules_pkey.
update schedules
set paused = %(paused)s, cursor_time = %(cursor_time)s, version = version + 1
where tenant_id = %(tenant_id)s and name = %(name)s
returning name, cron, time_zone, spawn, overlap, catch_up, schedule_id, paused, cursor_time, session_ids,
    busy_until, version, create_time, updated_by

-- name: move_cursor
-- The caller has locked the schedule. Index: schedules_id_idx.
update schedules set cursor_time = %(cursor_time)s
where tenant_id = %(tenant_id)s and schedule_id = %(schedule_id)s

-- name: set_sessions
-- The caller has locked the schedule. Index: schedules_id_idx.
update schedules set session_ids = %(session_ids)s
where tenant_id = %(tenant_id)s and schedule_id = %(schedule_id)s

-- name: set_busy
-- Locks the schedule. Index: schedules_id_idx.
update schedules set busy_until = %(busy_until)s
where tenant_id = %(tenant_id)s and schedule_id = %(schedule_id)s

-- name: delete_schedule
-- The caller has locked the schedule. Index: schedules_pkey.
delete from schedules where tenant_id = %(tenant_id)s and name = %(name)s

-- name: insert_firing
-- Locks no existing row. A firing that is known stays as it is, and then no row is returned. Index:
-- schedule_firings_pkey.
insert into schedule_firings (tenant_id, schedule_id, firing_id, due_time, fire_time, outcome, session_id,
    error_reason, error_message, is_manual)
values (%(tenant_id)s, %(schedule_id)s, %(firing_id)s, %(due_time)s, %(fire_time)s, %(outcome)s,
    %(session_id)s, %(error_reason)s, %(error_message)s, %(is_manual)s)
on conflict do nothing
returning firing_id

-- name: get_firing
-- Takes no lock. Index: schedule_firings_pkey.
select firing_id, due_time, fire_time, outcome, session_id, error_reason, error_message, is_manual
from schedule_firings
where tenant_id = %(tenant_id)s and schedule_id = %(schedule_id)s and firing_id = %(firing_id)s

-- name: next_due_firing
-- Takes no lock. The oldest firing that is due. Index: schedule_firings_due_idx.
select firing_id, due_time, fire_time, outcome, session_id, error_reason, error_message, is_manual
from schedule_firings
where tenant_id = %(tenant_id)s and schedule_id = %(schedule_id)s and outcome = 'DUE'
order by due_time limit 1

-- name: end_firing
-- Locks the row. A firing that another worker has ended stays as it is, and then no row is
-- returned. Index: schedule_firings_pkey.
update schedule_firings
set outcome = %(outcome)s, fire_time = %(fire_time)s, session_id = %(session_id)s,
    error_reason = %(error_reason)s, error_message = %(error_message)s
where tenant_id = %(tenant_id)s and schedule_id = %(schedule_id)s and firing_id = %(firing_id)s
    and outcome = 'DUE'
returning firing_id

-- name: begin_attempt
-- Locks the row. Keeps the time of the first attempt. Returns no row if the firing is not DUE any
-- more. Index: schedule_firings_pkey.
update schedule_firings set attempt_time = coalesce(attempt_time, %(attempt_time)s)
where tenant_id = %(tenant_id)s and schedule_id = %(schedule_id)s and firing_id = %(firing_id)s
    and outcome = 'DUE'
returning attempt_time

-- name: newest_firing
-- Takes no lock. Index: schedule_firings_newest_idx.
select firing_id, due_time, fire_time, outcome, session_id, error_reason, error_message, is_manual
from schedule_firings
where tenant_id = %(tenant_id)s and schedule_id = %(schedule_id)s and due_time >= '-infinity'
    and outcome <> 'DUE'
order by due_time desc, firing_id desc limit 1

-- name: list_firings
-- Takes no lock. An empty condition does not filter. Looks at %(scan_limit)s firings at most,
-- whatever it finds. The last of these is a row with `is_end`, also if it does not match. Index:
-- schedule_firings_newest_idx.
select firing_id, due_time, fire_time, outcome, session_id, error_reason, error_message, is_manual, is_match,
    place = %(scan_limit)s as is_end
from (
    select scanned.*, outcome <> 'DUE' and (%(outcome)s = '' or outcome = %(outcome)s) as is_match
    from (
        select *, row_number() over (order by due_time desc, firing_id desc) as place
        from (
            select * from schedule_firings
            where tenant_id = %(tenant_id)s and schedule_id = %(schedule_id)s and due_time >= '-infinity'
                and due_time >= %(start_time)s and due_time < %(end_time)s
                and (due_time, firing_id) < (%(before_time)s, %(before_id)s)
            order by due_time desc, firing_id desc
            limit %(scan_limit)s
        ) nearest
    ) scanned
) compared
where is_match or place = %(scan_limit)s
order by due_time desc, firing_id desc
limit %(limit)s

-- name: delete_due_firings
-- Locks the rows. Index: schedule_firings_due_idx.
delete from schedule_firings
where tenant_id = %(tenant_id)s and schedule_id = %(schedule_id)s and outcome = 'DUE'

-- name: delete_firings
-- Locks the rows. Index: schedule_firings_pkey.
delete from schedule_firings where tenant_id = %(tenant_id)s and schedule_id = %(schedule_id)s

-- name: prune_firings
-- Locks the oldest rows, and skips those that are locked. Index: schedule_firings_prune_idx,
-- schedule_firings_pkey.
with oldest as (
    select schedule_id, firing_id from schedule_firings
    where tenant_id = %(tenant_id)s and fire_time between '-infinity' and now() - %(older_than)s::interval
        and outcome <> 'DUE'
    order by fire_time limit %(limit)s for update skip locked
)
delete from schedule_firings f using oldest
where f.tenant_id = %(tenant_id)s and f.schedule_id = oldest.schedule_id and f.firing_id = oldest.firing_id
