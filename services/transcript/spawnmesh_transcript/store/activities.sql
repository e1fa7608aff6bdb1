-- name: record_activities
-- Runs as a transaction of its own. Waits for other recorders of the tenant. The function names
-- its indexes.
select record_activities(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_ids)s::text[],
    %(activities)b::bytea[]) as position;

-- name: read_newest_position
-- Takes no lock. Index: activity_heads primary key.
select position from activity_heads where tenant_id = %(tenant_id)s;

-- name: list_activities
-- Lists the activities of the tenant, oldest first. Takes no lock. Index: activities primary key.
select position, session_id, create_time, body
from activities
where tenant_id = %(tenant_id)s and position > %(after_position)s
order by position
limit %(row_count)s;

-- name: list_session_activities
-- Lists the activities of a session, oldest first. Takes no lock. Comparison and order leave the
-- planner no other index. Needs `keep_index_order`. Index: activities_session_idx.
select position, session_id, create_time, body
from activities
where tenant_id = %(tenant_id)s and (session_id, position) > (%(session_id)s, %(after_position)s)
    and session_id <= %(session_id)s
order by session_id, position
limit %(row_count)s;

-- name: forget_activities
-- Locks the rows that it deletes. Needs `keep_to_indexes`. Index: activities_time_idx.
select delete_rows_at('activities', array(
    select ctid from activities
    where tenant_id = %(tenant_id)s and create_time < now() - make_interval(days => %(days)s)
    order by create_time
    limit %(row_count)s
));
