-- No tenant's setting stands in another's way, a request_id is that of whoever spawns with it, and a decision tells the text that it was made for.

-- As before, for any cap: hands out only runs of sessions with one of these runtimes, which are all different. Runs of every runtime count for a
-- tenant's turn and cap. Looks for runs by tenant and runtime, however many wait of that runtime or another.
-- Index: dispatch_runtime_due_idx, dispatch_tenant_due_idx, dispatch_pkey.
create or replace function take_claimable_runs(
    p_every_tenant text, p_limit integer, p_lease_ttl interval, p_runtimes text[], out tenant_ids text[], out run_ids text[], out others_took boolean
) language plpgsql as $$
declare
    ours text[];
begin
    with due as materialized (
        select t.tenant_id,
               t.max_running_run_count < (select count(*) from (
                   select from dispatch d where d.tenant_id = t.tenant_id and d.kind = 'RUN' and d.due_time >= '-infinity'
                   limit t.max_running_run_count::bigint + 1
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

-- Clients of a tenant spawn under request_ids of their own, and so does each session whose runs spawn, whichever of its runs asks: a run can neither take an id
-- from a client nor find out which ones are taken. Who spawned is in the rows already, so replicas of the release before fill this index with the rest.
create unique index sessions_spawner_request_idx on sessions (request_id, tenant_id, (case when parent_run_id = '' then '' else parent_session_id end));
drop index sessions_request_idx;

-- Names the text that the draft had when it was decided that it is the answer: its entry, then a hash. It says nothing where it does not begin with
-- final_entry_id: whoever decided last was a replica of the release before.
alter table runs add column final_text_key text not null default '';

-- As with four parameters, and keeps which text the draft has.
create function decide_run(p_tenant_id text, p_run_id text, p_epoch bigint, p_entry_id text, p_text_key text, out run runs, out waiting bigint)
language plpgsql as $$
begin
    select * into run from runs r where r.tenant_id = p_tenant_id and r.run_id = p_run_id for update;
    select count(*) into waiting from inbox_messages m
    where m.tenant_id = p_tenant_id and m.session_id = run.session_id and m.acknowledge_time is null and m.position >= 0;
    if run.epoch = p_epoch and (run.state = 'RUNNING' or run.state = 'FINALIZING' and run.final_entry_id = '') then
        update runs r set
            state = case when waiting = 0 then 'FINALIZING' else 'RUNNING' end,
            draft_entry_id = case when waiting = 0 then p_entry_id else '' end,
            final_text_key = case when waiting = 0 then p_text_key else r.final_text_key end,
            final_entry_id = case when waiting = 0 then p_entry_id else r.final_entry_id end
        where r.tenant_id = p_tenant_id and r.run_id = p_run_id
        returning * into run;
    end if;
end
$$;
