-- A run remembers at which epoch it was claimed first, and is handed out to those alone who take runs of its session's runtime.

-- 0 for one that was not claimed yet, or was claimed before there was this column.
alter table runs add column first_epoch bigint not null default 0;

-- That of a run's session; of no meaning for other kinds. Runs are looked for by it through an index whose condition every one fulfils and only the statement
-- that looks for them says: whatever the planner counted, it cannot take the index on all runs of a tenant, and read those of the other runtimes.
alter table dispatch add column runtime text not null default 'SUBAGENT';
alter table dispatch alter column runtime set (n_distinct = 2);
create index dispatch_runtime_due_idx on dispatch (tenant_id, runtime, due_time) where kind = 'RUN' and runtime >= '';

do $$
declare
    tenants_with_runs text[];
    one text;
begin
    perform set_config('spawnmesh.tenant', '*', true);
    select array_agg(distinct d.tenant_id) into tenants_with_runs from dispatch d where d.kind = 'RUN';
    foreach one in array coalesce(tenants_with_runs, '{}') loop
        perform set_config('spawnmesh.tenant', one, true);
        update dispatch d set runtime = s.runtime
        from runs r join sessions s on s.tenant_id = r.tenant_id and s.session_id = r.session_id
        where d.tenant_id = one and d.kind = 'RUN' and r.tenant_id = one and r.run_id = d.subject_id and s.runtime <> 'SUBAGENT';
    end loop;
    perform set_config('spawnmesh.tenant', '', true);
end
$$;
analyze dispatch;

-- As with three parameters before, but hands out only runs of sessions with one of these runtimes, which are all different. Runs of every runtime count for a
-- tenant's turn and cap. Looks for runs by tenant and runtime, however many wait of that runtime or another.
-- Index: dispatch_runtime_due_idx, dispatch_tenant_due_idx, dispatch_pkey.
create function take_claimable_runs(
    p_every_tenant text, p_limit integer, p_lease_ttl interval, p_runtimes text[], out tenant_ids text[], out run_ids text[], out others_took boolean
) language plpgsql as $$
declare
    ours text[];
begin
    with due as materialized (
        select t.tenant_id,
               t.max_running_run_count < (select count(*) from (
                   select from dispatch d where d.tenant_id = t.tenant_id and d.kind = 'RUN' and d.due_time >= '-infinity'
                   limit t.max_running_run_count + 1
               ) counted) as is_crowded
        from tenants t
        where (select true
               from unnest(p_runtimes) as wanted (runtime)
               cross join lateral (
                   select from dispatch d
                   where d.tenant_id = t.tenant_id and d.kind = 'RUN' and d.runtime = wanted.runtime and d.runtime >= ''
                     and d.due_time <= now() and d.expire_time > now() and d.attempts_left > 0
                   order by d.due_time limit 1
               ) found
               limit 1)
    ), reserved as (
        select tenant_id,
               case when is_crowded then pg_try_advisory_xact_lock(hashtextextended('hand out runs of ' || tenant_id, 0)) else true end as is_ours
        from due
    )
    select array_agg(r.tenant_id) filter (where r.is_ours), coalesce(bool_or(not r.is_ours), false) into ours, others_took from reserved r;
    if ours is null then
        return;
    end if;
    with waiting as materialized (
        select t.tenant_id, t.max_running_run_count as cap,
               (select count(*) from dispatch d
                where d.tenant_id = t.tenant_id and d.kind = 'RUN' and d.leased and d.due_time >= '-infinity' and d.due_time > now()) as running
        from tenants t
        where t.tenant_id = any (ours)
    ), candidates as (
        select w.tenant_id, w.cap, d.subject_id, w.running + row_number() over (partition by w.tenant_id order by d.due_time) as turn
        from waiting w
        cross join unnest(p_runtimes) as wanted (runtime)
        cross join lateral (
            select subject_id, due_time from dispatch
            where tenant_id = w.tenant_id and kind = 'RUN' and runtime = wanted.runtime and runtime >= ''
              and due_time <= now() and expire_time > now() and attempts_left > 0
            order by due_time limit p_limit * 2
        ) d
    ), chosen as (
        select d.tenant_id, d.subject_id
        from dispatch d join candidates c on c.tenant_id = d.tenant_id and c.subject_id = d.subject_id
        where d.kind = 'RUN' and d.due_time <= now() and d.expire_time > now() and d.attempts_left > 0 and c.turn <= c.cap
        order by c.turn, d.due_time
        limit p_limit
        for update of d skip locked
    ), taken as (
        update dispatch d set due_time = now() + p_lease_ttl, leased = true, attempts_left = attempts_left - 1
        from chosen where d.tenant_id = chosen.tenant_id and d.kind = 'RUN' and d.subject_id = chosen.subject_id
        returning d.tenant_id, d.subject_id
    )
    select array_agg(t.tenant_id), array_agg(t.subject_id) into tenant_ids, run_ids from taken t;
end
$$;

-- For replicas of the release before, whose callers cannot say which runtimes they take.
create or replace function take_claimable_runs(
    p_every_tenant text, p_limit integer, p_lease_ttl interval, out tenant_ids text[], out run_ids text[], out others_took boolean
) language plpgsql as $$
begin
    select * into tenant_ids, run_ids, others_took from take_claimable_runs(p_every_tenant, p_limit, p_lease_ttl, array['SUBAGENT']);
end
$$;

-- Inserts a run with its place in the queue, where it has its session's runtime, and its event. Locks the session; runners, and whoever watches the session,
-- hear when the transaction commits. Fails on runs_one_live_idx where the session has a live run. Its time is that of the statement: the session's lock may
-- have been waited for. Index: sessions_pkey.
create or replace function queue_run(p_tenant_id text, p_session_id text, p_run_id text, p_run_timeout interval, p_attempts_left integer) returns void
language plpgsql as $$
begin
    with next as (
        update sessions s set last_cursor = last_cursor + 1
        where s.tenant_id = p_tenant_id and s.session_id = p_session_id
        returning s.last_cursor, s.runtime
    ), queued as (
        insert into runs (tenant_id, run_id, session_id, state, queue_time, deadline_time)
        select p_tenant_id, p_run_id, p_session_id, 'QUEUED', queued, queued + p_run_timeout from next cross join clock_timestamp() as queued
        returning deadline_time
    ), placed as (
        insert into dispatch (tenant_id, kind, subject_id, due_time, expire_time, attempts_left, runtime)
        select p_tenant_id, 'RUN', p_run_id, now(), q.deadline_time, p_attempts_left, n.runtime from queued q cross join next n
    )
    insert into session_events (tenant_id, session_id, cursor, kind, run_id, run_state)
    select p_tenant_id, p_session_id, n.last_cursor, 'RUN', p_run_id, 'QUEUED' from queued cross join next n;
    perform pg_notify('session_changed', p_tenant_id || ':' || p_session_id), pg_notify('run_queued', '');
end
$$;
