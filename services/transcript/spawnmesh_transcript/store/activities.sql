-- name: lock_activities
-- Keeps every other transaction from recording or deleting activities of the tenant until commit.
select pg_advisory_xact_lock(hashtextextended('activities of ' || %(tenant_id)s, 0));

-- name: record_activities
-- Follows `join_writers` and `lock_activities`: positions rise in the order of commits,
-- so a reader of one position has missed none below it. Records activities in their order, except
-- those of transcripts that cannot be read, and returns the newest position; no row if it recorded
-- none. Each transcript is looked up by itself and not joined. Indexes: the primary keys.
with known as (
    select given.session_id, given.body, row_number() over (order by given.number) as number
    from unnest(%(session_ids)s::text[], %(activities)b::bytea[])
        with ordinality as given (session_id, body, number)
    where (
        select state from transcripts
        where tenant_id = %(tenant_id)s and session_id = given.session_id
    ) = 'LIVE'
        and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
), head as (
    insert into activity_heads as h (tenant_id, position)
    select %(tenant_id)s, count(*) from known
    having count(*) > 0
    on conflict (tenant_id) do update
    set position = h.position + excluded.position
    returning position
), recorded as (
    insert into activities (tenant_id, position, session_id, create_time, body)
    select %(tenant_id)s, h.position - (select count(*) from known) + k.number, k.session_id,
        clock_timestamp(), k.body
    from known k
    cross join head h
    returning position
)
select position from head;

-- name: read_newest_position
-- Takes no lock. Index: activity_heads primary key.
select position from activity_heads where tenant_id = %(tenant_id)s;

-- name: list_activities
-- Lists the activities of the tenant, oldest first. Takes no lock. Index: activities primary key.
select position, session_id, create_time, body
from activities
where tenant_id = %(tenant_id)s and position > %(after_position)s
order by position
limit (select %(row_count)s::bigint);

-- name: list_session_activities
-- Lists the activities of a session, oldest first. Takes no lock. Index: activities_session_idx.
select position, session_id, create_time, body
from activities
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and session_id <> ''
    and position > %(after_position)s
order by position
limit (select %(row_count)s::bigint);

-- name: forget_activities
-- Deletes the oldest activities, whose positions rise with their times. Locks the rows that it
-- deletes. Index: activities primary key.
with page as (
    select position, create_time from activities
    where tenant_id = %(tenant_id)s
    order by position
    limit (select %(row_count)s::bigint)
)
delete from activities
where tenant_id = %(tenant_id)s and create_time < now() - make_interval(days => %(days)s)
    and position between (select min(position) from page) and (
        select max(position) from page where create_time < now() - make_interval(days => %(days)s)
    );
