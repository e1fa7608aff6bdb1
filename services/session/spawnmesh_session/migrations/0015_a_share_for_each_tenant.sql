-- What is due is taken tenant by tenant, so that one with much of it keeps no other waiting; and ends wait apart from all other work until
-- observers are told.

-- Also: an end of which observers are to be told, once the tenant's plugins have said where (kind END). Its subject is the run, or the session
-- of a spawn that failed; its details are ids, the outcome and the trace; attempts_left: how often plugins may be asked; after expire_time
-- nobody is told any more.
alter table dispatch drop constraint dispatch_kind_check;
alter table dispatch add constraint dispatch_kind_check check (kind in ('RUN', 'SPAWN', 'DELETE', 'PURGE', 'SETTINGS', 'END'));

-- again_time: of a run whose time was over when it was taken to be ended; it is not taken again before.
alter table dispatch
    add column again_time timestamptz,
    add column details    jsonb;

create index dispatch_tenant_overdue_idx on dispatch (kind, tenant_id, due_time) where kind <> 'RUN' and due_time >= '-infinity';
create index dispatch_tenant_expiring_idx on dispatch (tenant_id, greatest(expire_time, again_time))
    where kind = 'RUN' and expire_time >= '-infinity';
create index dispatch_tenant_last_attempt_idx on dispatch (tenant_id, due_time) where kind = 'RUN' and attempts_left <= 0;
drop index dispatch_run_expiring_idx, dispatch_last_attempt_idx;

-- Takes what is due of the kind, in the scope of every tenant: at most p_limit, and of each tenant p_share at most, less what p_busy says that
-- it has at work already. First come those of which their tenant has the fewest before them, of these the longest due. Each is locked, skipped
-- where somebody else holds it, and comes again after p_again_in. It goes from tenant to tenant, and reads no more of one than its share. No
-- runs. Index: dispatch_tenant_overdue_idx, dispatch_pkey.
create function take_overdue(p_kind text, p_limit integer, p_share integer, p_busy jsonb, p_again_in interval)
returns table (tenant_id text, subject_id text, attempts_left integer, details jsonb)
language plpgsql set enable_sort = off as $$
#variable_conflict use_column
declare
    chosen record;
    place tid;
begin
    for chosen in
        with recursive waiting as (
            (select d.tenant_id from dispatch d
             where d.kind = p_kind and d.kind <> 'RUN' and d.due_time >= '-infinity' order by d.tenant_id limit 1)
            union all
            select (select d.tenant_id from dispatch d
                    where d.kind = p_kind and d.kind <> 'RUN' and d.due_time >= '-infinity' and d.tenant_id > w.tenant_id
                    order by d.tenant_id limit 1)
            from waiting w where w.tenant_id is not null
        ), shares as (
            select w.tenant_id, coalesce((p_busy ->> w.tenant_id)::integer, 0) as busy from waiting w where w.tenant_id is not null
        )
        select s.tenant_id, due.subject_id, s.busy + row_number() over (partition by s.tenant_id order by due.due_time) as turn, due.due_time
        from shares s
        cross join lateral (
            select d.subject_id, d.due_time from dispatch d
            where d.kind = p_kind and d.kind <> 'RUN' and d.tenant_id = s.tenant_id and d.due_time between '-infinity' and now()
            order by d.due_time limit greatest(p_share - s.busy, 0)
        ) due
        order by turn, due.due_time
        limit p_limit
    loop
        select d.ctid into place from dispatch d
        where d.tenant_id = chosen.tenant_id and d.kind = p_kind and d.subject_id = chosen.subject_id and d.due_time <= now()
        for update skip locked;
        if found then
            return query update dispatch d set due_time = now() + p_again_in where d.ctid = place
                returning d.tenant_id, d.subject_id, d.attempts_left, d.details;
        end if;
    end loop;
end
$$;

-- As take_overdue, of runs that nobody can finish: those whose time is over, and those whose lease ran out with no attempt left.
-- Index: dispatch_tenant_expiring_idx, dispatch_tenant_last_attempt_idx, dispatch_pkey.
create function take_lost_runs(p_limit integer, p_share integer, p_again_in interval)
returns table (tenant_id text, run_id text, timed_out boolean, due_time timestamptz)
language plpgsql set enable_sort = off as $$
#variable_conflict use_column
declare
    chosen record;
    place tid;
begin
    for chosen in
        with recursive live as (
            (select d.tenant_id from dispatch d where d.kind = 'RUN' and d.expire_time >= '-infinity' order by d.tenant_id limit 1)
            union all
            select (select d.tenant_id from dispatch d
                    where d.kind = 'RUN' and d.expire_time >= '-infinity' and d.tenant_id > l.tenant_id order by d.tenant_id limit 1)
            from live l where l.tenant_id is not null
        )
        select l.tenant_id, lost.subject_id, row_number() over (partition by l.tenant_id order by lost.since) as turn, lost.since
        from live l
        cross join lateral (
            (select d.subject_id, greatest(d.expire_time, d.again_time) as since from dispatch d
             where d.tenant_id = l.tenant_id and d.kind = 'RUN' and d.expire_time >= '-infinity'
               and greatest(d.expire_time, d.again_time) between '-infinity' and now()
             order by greatest(d.expire_time, d.again_time) limit p_share)
            union all
            (select d.subject_id, d.due_time from dispatch d
             where d.tenant_id = l.tenant_id and d.kind = 'RUN' and d.attempts_left <= 0 and d.due_time between '-infinity' and now()
               and d.expire_time > now()
             order by d.due_time limit p_share)
        ) lost
        where l.tenant_id is not null
        order by turn, lost.since
        limit p_limit
    loop
        select d.ctid into place from dispatch d
        where d.tenant_id = chosen.tenant_id and d.kind = 'RUN' and d.subject_id = chosen.subject_id
          and (greatest(d.expire_time, d.again_time) <= now() or d.expire_time > now() and d.attempts_left <= 0 and d.due_time <= now())
        for update skip locked;
        if found then
            return query update dispatch d set due_time = greatest(d.due_time, now() + p_again_in), again_time = now() + p_again_in
                where d.ctid = place
                returning d.tenant_id, d.subject_id, d.expire_time <= now(), d.due_time;
        end if;
    end loop;
end
$$;
