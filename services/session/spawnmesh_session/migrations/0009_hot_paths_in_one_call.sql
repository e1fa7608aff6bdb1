-- What runs and their runners wait for is one statement each, a transaction of its own.

-- Hands out runs whose time has come, in the scope of every tenant: ids of tenants and runs, side by side. Locks the rows taken and skips those that another
-- claim holds. Each tenant's turn counts the runs it has already, so that one with few is served before one with many, and none gets more than its cap. A run
-- taken is leased, and one attempt is used: whoever takes it and dies is treated as a runner that was lost. Of a tenant that has more runs than it may have at
-- once, runs are handed out only by whoever has taken the right to, until the transaction ends: so the second statement counts what another claim handed out.
-- `others_took`: another claim had that right. Looks for runs tenant by tenant, however many wait. Index: dispatch_tenant_due_idx.
create function take_claimable_runs(
    p_every_tenant text, p_limit integer, p_lease_ttl interval, out tenant_ids text[], out run_ids text[], out others_took boolean
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
        where (select true from dispatch d
               where d.tenant_id = t.tenant_id and d.kind = 'RUN' and d.due_time between '-infinity' and now()
                 and d.expire_time > now() and d.attempts_left > 0
               order by d.due_time limit 1)
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
        cross join lateral (
            select subject_id, due_time from dispatch
            where tenant_id = w.tenant_id and kind = 'RUN' and due_time between '-infinity' and now() and expire_time > now() and attempts_left > 0
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

-- RUNNING -> FINALIZING with this draft, where the run is held at this epoch, is not being made final, and no message waits for it; else nothing. `run` is the
-- run as it is then, all null where there is none; with its session's agent, how many messages wait, and `has_begun`. Locks the run, and counts
-- what waits by then. Index: runs_pkey, sessions_pkey, inbox_messages_unread_idx.
create function begin_finalizing(
    p_tenant_id text, p_run_id text, p_epoch bigint, p_entry_id text, out run runs, out agent_id text, out waiting bigint, out has_begun boolean
) language plpgsql as $$
begin
    select * into run from runs r where r.tenant_id = p_tenant_id and r.run_id = p_run_id for update;
    select s.agent_id into agent_id from sessions s where s.tenant_id = p_tenant_id and s.session_id = run.session_id;
    select count(*) into waiting from inbox_messages m
    where m.tenant_id = p_tenant_id and m.session_id = run.session_id and m.acknowledge_time is null and m.position >= 0;
    has_begun := waiting = 0 and run.epoch = p_epoch
        and (run.state = 'RUNNING' and run.final_entry_id in ('', p_entry_id) or run.state = 'FINALIZING' and run.final_entry_id = '');
    if has_begun then
        update runs r set state = 'FINALIZING', draft_entry_id = p_entry_id where r.tenant_id = p_tenant_id and r.run_id = p_run_id
        returning * into run;
    end if;
end
$$;

-- The draft of a run that is held at this epoch is being made its answer, and no message is put before it any more; where one waits, the run is RUNNING again
-- instead. Nothing where that was decided before. `run` is the run as it is then, all null where there is none. Locks the run, and counts what waits by
-- then. Index: runs_pkey, inbox_messages_unread_idx.
create function decide_run(p_tenant_id text, p_run_id text, p_epoch bigint, p_entry_id text, out run runs, out waiting bigint)
language plpgsql as $$
begin
    select * into run from runs r where r.tenant_id = p_tenant_id and r.run_id = p_run_id for update;
    select count(*) into waiting from inbox_messages m
    where m.tenant_id = p_tenant_id and m.session_id = run.session_id and m.acknowledge_time is null and m.position >= 0;
    if run.epoch = p_epoch and (run.state = 'RUNNING' or run.state = 'FINALIZING' and run.final_entry_id = '') then
        update runs r set
            state = case when waiting = 0 then 'FINALIZING' else 'RUNNING' end,
            draft_entry_id = case when waiting = 0 then p_entry_id else '' end,
            final_entry_id = case when waiting = 0 then p_entry_id else r.final_entry_id end
        where r.tenant_id = p_tenant_id and r.run_id = p_run_id
        returning * into run;
    end if;
end
$$;

-- The session, unless it was deleted, with its newest run. Locks nothing. Index: sessions_pkey, runs_newest_idx.
create function find_session(p_tenant_id text, p_session_id text) returns table (session sessions, latest_run jsonb)
language plpgsql stable as $$
begin
    return query
        select s, to_jsonb(r) - 'tenant_id'
        from sessions s
        left join lateral (
            select * from runs where tenant_id = s.tenant_id and session_id = s.session_id order by position desc, run_id desc limit 1
        ) r on true
        where s.tenant_id = p_tenant_id and s.session_id = p_session_id and s.delete_time is null;
end
$$;

-- The oldest messages that wait, as many as fit into p_max_bytes and one in any case; at most 100. Locks nothing. Index: inbox_messages_unread_idx.
create function list_inbox(p_tenant_id text, p_session_id text, p_max_bytes bigint)
returns table (key text, text text, child_session_id text, child_run_state text, create_time timestamptz)
language plpgsql stable as $$
#variable_conflict use_column
begin
    return query
        select key, text, child_session_id, child_run_state, create_time
        from (
            select *, sum(octet_length(text)) over (order by position) as bytes, row_number() over (order by position) as place
            from (select * from inbox_messages
                  where tenant_id = p_tenant_id and session_id = p_session_id and acknowledge_time is null and position >= 0
                  order by position limit 100) oldest
        ) counted
        where bytes <= p_max_bytes or place = 1
        order by position;
end
$$;
