-- A spawn that no parent has to allow is begun by one call, a transaction of its own, and so is every session made active.

-- Inserts the session, PROVISIONING, with its first event and its time in the queue, by which it is to be spawned, where nothing stands against it: its tenant is
-- complete and is not being deleted, which it is kept from until the transaction ends; the agent is known; no more wait in the tenant's queue than its
-- settings allow, less p_margin, or p_max_queued_run_count where they say nothing. p_session is a JSON object with the other columns. False: nothing was
-- done, and what stands against it is to be looked for; it may also be that the request_id is known. Waits for a transaction that is inserting that.
-- Index: tenants_pkey, tenant_deletions_pkey, agents_pkey, dispatch_tenant_due_idx, sessions_request_idx, sessions_pkey, dispatch_pkey.
create function begin_spawn(
    p_tenant_id text, p_session jsonb, p_run_timeout interval, p_due_in interval, p_max_queued_run_count bigint, p_margin bigint
) returns boolean language plpgsql as $$
declare
    tenant record;
    allowed bigint;
begin
    select * into tenant from enter_tenant(p_tenant_id);
    allowed := coalesce(nullif((tenant.settings ->> 'max_queued_run_count')::bigint, 0), p_max_queued_run_count) - p_margin;
    with inserted as (
        insert into sessions (tenant_id, session_id, request_id, payload_hash, state, agent_id, label, model, mode, context, cleanup, runtime,
                              parent_session_id, parent_run_id, ancestor_ids, run_timeout, task_hash, traceparent, thinking, last_cursor)
        select p_tenant_id, s.session_id, s.request_id, decode(s.payload_hash, 'hex'), 'PROVISIONING', s.agent_id, s.label, s.model, s.mode, s.context,
               s.cleanup, s.runtime, '', '', '{}', p_run_timeout, s.task_hash, s.traceparent, s.thinking, 1
        from jsonb_to_record(p_session) as s (
            session_id text, request_id text, payload_hash text, agent_id text, label text, model text, mode text, context text, cleanup text,
            runtime text, task_hash text, traceparent text, thinking text
        )
        where tenant.ready and tenant.deletion is null
            and exists (select from agents a where a.tenant_id = p_tenant_id and a.agent_id = s.agent_id)
            and allowed >= (select count(*) from (
                select from dispatch d
                where d.tenant_id = p_tenant_id and d.kind in ('RUN', 'SPAWN') and d.due_time >= '-infinity' and not d.leased
                limit greatest(allowed + 1, 0)
            ) waiting)
        on conflict do nothing
        returning session_id, last_cursor
    ), due as (
        insert into dispatch (tenant_id, kind, subject_id, due_time)
        select p_tenant_id, 'SPAWN', i.session_id, now() + p_due_in from inserted i
        on conflict (tenant_id, kind, subject_id) do update set due_time = excluded.due_time
    )
    insert into session_events (tenant_id, session_id, cursor, kind)
    select p_tenant_id, i.session_id, i.last_cursor, 'PROVISIONING' from inserted i;
    return found;
end
$$;

-- Inserts a run with its place in the queue and its event. Locks the session; runners, and whoever watches the session, hear when the transaction commits.
-- Fails on runs_one_live_idx where the session has a live run. Its time is that of the statement: the session's lock may have been waited for.
-- Index: sessions_pkey.
create function queue_run(p_tenant_id text, p_session_id text, p_run_id text, p_run_timeout interval, p_attempts_left integer) returns void
language plpgsql as $$
begin
    with next as (
        update sessions s set last_cursor = last_cursor + 1
        where s.tenant_id = p_tenant_id and s.session_id = p_session_id
        returning s.last_cursor
    ), queued as (
        insert into runs (tenant_id, run_id, session_id, state, queue_time, deadline_time)
        select p_tenant_id, p_run_id, p_session_id, 'QUEUED', queued, queued + p_run_timeout from next cross join clock_timestamp() as queued
        returning deadline_time
    ), placed as (
        insert into dispatch (tenant_id, kind, subject_id, due_time, expire_time, attempts_left)
        select p_tenant_id, 'RUN', p_run_id, now(), q.deadline_time, p_attempts_left from queued q
    )
    insert into session_events (tenant_id, session_id, cursor, kind, run_id, run_state)
    select p_tenant_id, p_session_id, n.last_cursor, 'RUN', p_run_id, 'QUEUED' from queued cross join next n;
    perform pg_notify('session_changed', p_tenant_id || ':' || p_session_id), pg_notify('run_queued', '');
end
$$;

-- PROVISIONING -> ACTIVE: its time to be spawned by is taken out of the queue, its first run put there, and p_jobs are due, as the library of jobs is told of
-- them. The session as it is then; nothing, and nothing is done, where it is no longer being spawned. Locks the session.
-- Index: sessions_pkey, dispatch_pkey, and those of the functions that it calls.
create function enrol_session(
    p_tenant_id text, p_session_id text, p_receipt jsonb, p_run_id text, p_run_timeout interval, p_attempts_left integer, p_jobs jsonb
) returns table (session sessions, latest_run jsonb) language plpgsql as $$
begin
    update sessions s set state = 'ACTIVE', receipt = p_receipt
    where s.tenant_id = p_tenant_id and s.session_id = p_session_id and s.state = 'PROVISIONING';
    if not found then
        return;
    end if;
    delete from dispatch d where d.tenant_id = p_tenant_id and d.kind = 'SPAWN' and d.subject_id = p_session_id;
    perform queue_run(p_tenant_id, p_session_id, p_run_id, p_run_timeout, p_attempts_left);
    perform procrastinate_defer_jobs_v1(array_agg(job)) from jsonb_populate_recordset(null::procrastinate_job_to_defer_v1, p_jobs) as job;
    return query select * from find_session(p_tenant_id, p_session_id);
end
$$;
