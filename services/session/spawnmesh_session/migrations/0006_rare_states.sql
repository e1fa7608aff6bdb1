-- What the planner was told when nothing ran, or of tenants that have a few rows each, misleads it no more once one tenant has many.

-- Of a state that no row had when it counted it expects one row at most, and so an index on the rows in that state to be as good as the primary key for
-- whatever concerns only such rows. These indexes have a condition more, which every row fulfils and only the statements that are to use them say.
create unique index runs_one_live_idx on runs (session_id, tenant_id) where state in ('QUEUED', 'RUNNING', 'FINALIZING') and position >= 0;
drop index runs_live_session_idx;

create index inbox_messages_unread_idx on inbox_messages (tenant_id, session_id, position) where acknowledge_time is null and position >= 0;
drop index inbox_messages_waiting_idx;

create index dispatch_run_expiring_idx on dispatch (expire_time) where kind = 'RUN' and expire_time >= '-infinity';
create index dispatch_kind_overdue_idx on dispatch (kind, due_time) where kind <> 'RUN' and due_time >= '-infinity';
drop index dispatch_run_expire_idx, dispatch_overdue_idx;

-- A tenant that is not given as a constant is expected to have a hundredth of each table, however few rows the tenants had that were counted: fewer than
-- would make reading the whole table look cheap, and more than a row or two, which would make an index that begins with the tenant look as good as one
-- that has all that is asked for.
alter table sessions alter column tenant_id set (n_distinct = 100);
alter table runs alter column tenant_id set (n_distinct = 100);
alter table dispatch alter column tenant_id set (n_distinct = 100);
alter table inbox_messages alter column tenant_id set (n_distinct = 100);
alter table session_events alter column tenant_id set (n_distinct = 100);
-- As are parents and sessions that are looked for by their children and their runs: two rows each, if there was one parent or one session when it counted.
alter table sessions alter column parent_session_id set (n_distinct = -0.5);
alter table runs alter column session_id set (n_distinct = -0.5);
analyze sessions, runs, dispatch, inbox_messages, session_events;

-- Each deletes at most so many rows of the tenant that are older, the oldest first, and leaves out those that are locked; gives how many. Row by row at its
-- place: for a page of places the planner may rather compare every row of the tenant with each of them.

-- Index: session_events_prune_idx.
create function prune_events(p_tenant_id text, p_older_than interval, p_limit integer) returns bigint
language plpgsql set enable_sort = off as $$
declare
    place tid;
    row_count bigint := 0;
begin
    for place in
        select e.ctid from session_events e
        where e.tenant_id = p_tenant_id and e.event_time between '-infinity' and now() - p_older_than
        order by e.event_time limit p_limit for update skip locked
    loop
        delete from session_events e where e.ctid = place;
        row_count := row_count + 1;
    end loop;
    return row_count;
end
$$;

-- Index: inbox_messages_acknowledged_idx.
create function prune_messages(p_tenant_id text, p_older_than interval, p_limit integer) returns bigint
language plpgsql set enable_sort = off as $$
declare
    place tid;
    row_count bigint := 0;
begin
    for place in
        select m.ctid from inbox_messages m
        where m.tenant_id = p_tenant_id and m.acknowledge_time < now() - p_older_than
        order by m.acknowledge_time limit p_limit for update skip locked
    loop
        delete from inbox_messages m where m.ctid = place;
        row_count := row_count + 1;
    end loop;
    return row_count;
end
$$;

-- Of sessions that are deleted; leaves out those whose files or transcript may be there still. Index: sessions_forgotten_idx, dispatch_pkey.
create function forget_deleted(p_tenant_id text, p_older_than interval, p_limit integer) returns bigint
language plpgsql set enable_sort = off as $$
declare
    place tid;
    row_count bigint := 0;
begin
    for place in
        select s.ctid from sessions s
        where s.tenant_id = p_tenant_id and s.delete_time between '-infinity' and now() - p_older_than
            and (select true from dispatch d where d.tenant_id = p_tenant_id and d.kind = 'DELETE' and d.subject_id = s.session_id) is null
        order by s.delete_time limit p_limit for update of s skip locked
    loop
        delete from sessions s where s.ctid = place;
        row_count := row_count + 1;
    end loop;
    return row_count;
end
$$;

-- Deletes the runs of these sessions. Index: runs_newest_idx.
create function delete_runs(p_tenant_id text, p_session_ids text[]) returns void
language plpgsql set enable_sort = off as $$
declare
    wanted text;
    place tid;
begin
    foreach wanted in array p_session_ids loop
        for place in
            select r.ctid from runs r where r.tenant_id = p_tenant_id and r.session_id between wanted and wanted order by r.session_id
        loop
            delete from runs r where r.ctid = place;
        end loop;
    end loop;
end
$$;
