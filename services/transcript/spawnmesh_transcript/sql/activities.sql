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
-- No lock, oldest first. The comparison and the order leave the planner no other index. Needs `keep_index_order`. Index: activities_session_idx.
select position, session_id, create_time, body
from activities
where tenant_id = %(tenant_id)s and (session_id, position) > (%(session_id)s, %(after_position)s) and session_id <= %(session_id)s
order by session_id, position
limit %(row_count)s;

-- name: forget_activities
-- Locks what it deletes. Needs `keep_to_indexes`. See the function for why it is called. Index: activities_time_idx.
select delete_at('activities', array(
    select ctid from activities
    where tenant_id = %(tenant_id)s and create_time < now() - make_interval(days => %(days)s)
    order by create_time
    limit %(row_count)s
));

-- name: delete_activities
-- Waits for whoever records activities of the tenant. See the function for its index.
select delete_activities(%(tenant_id)s, %(session_id)s, %(row_count)s);

-- name: purge_activities
-- Locks what it deletes. Nobody records any more. Needs `keep_to_indexes`. See the function for why it is called. Index: activities primary key.
select delete_at('activities', array(
    select ctid from activities
    where tenant_id = %(tenant_id)s
    order by position
    limit %(row_count)s
));

-- name: purge_activity_heads
-- Locks the row. Index: activity_heads primary key.
delete from activity_heads where tenant_id = %(tenant_id)s and %(row_count)s > 0;
