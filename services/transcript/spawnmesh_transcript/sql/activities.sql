-- name: record_activities
-- A transaction of its own. Waits for whoever records activities of the tenant; see the function for why, and for its indexes.
select record_activities(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_ids)s::text[], %(activities)b::bytea[]) as position;

-- name: newest_activity
-- No lock. Index: activity_heads primary key.
select position from activity_heads where tenant_id = %(tenant_id)s;

-- name: list_activities
-- No lock, oldest first, of the whole tenant. Index: activities primary key.
select position, session_id, create_time, body
from activities
where tenant_id = %(tenant_id)s and position > %(after_position)s
order by position
limit %(row_count)s;

-- name: list_session_activities
-- No lock, oldest first. Index: activities_session_idx.
select position, session_id, create_time, body
from activities
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and position > %(after_position)s
order by position
limit %(row_count)s;

-- name: forget_activities
-- Locks what it deletes. Needs `keep_to_indexes`. Index: activities_time_idx.
with page as materialized (
    select create_time from activities
    where tenant_id = %(tenant_id)s and create_time < now() - make_interval(days => %(days)s)
    order by create_time
    limit %(row_count)s
)
delete from activities
where tenant_id = %(tenant_id)s
    and create_time <= (select max(create_time) from page);

-- name: delete_activities
-- Waits for whoever records activities of the tenant. See the function for its index.
select delete_activities(%(tenant_id)s, %(session_id)s, %(row_count)s);

-- name: purge_activities
-- Locks what it deletes. Nobody records any more. Needs `keep_to_indexes`. Index: activities primary key.
with page as materialized (
    select position from activities
    where tenant_id = %(tenant_id)s
    order by position
    limit %(row_count)s
)
delete from activities
where tenant_id = %(tenant_id)s
    and position <= (select max(position) from page);

-- name: purge_activity_heads
-- Locks the row. Index: activity_heads primary key.
delete from activity_heads where tenant_id = %(tenant_id)s and %(row_count)s > 0;
