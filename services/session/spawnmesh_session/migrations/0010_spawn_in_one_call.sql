-- A spawn that no parent has to allow is begun by one statement, a transaction of its own; and a session that is no longer being spawned ends the transaction
-- that was to make it active.

-- Inserts the session, PROVISIONING, with its first event and its time in the queue, by which it is to be spawned, where nothing stands against it: its tenant is
-- complete and is not being deleted, which it is kept from until the transaction ends; the agent is known; no more wait in the tenant's queue than its
-- settings allow, less p_margin, or p_max_queued_run_count where they say nothing. p_session is a JSON object with the columns. False: nothing was
-- done, and what stands against it is to be looked for; it may also be that the request_id is known. Waits for a transaction that is inserting that.
-- Index: tenants_pkey, tenant_deletions_pkey, agents_pkey, dispatch_tenant_due_idx, sessions_request_idx, sessions_pkey, dispatch_pkey.
create function begin_spawn(p_tenant_id text, p_session jsonb, p_due_in interval, p_max_queued_run_count bigint, p_margin bigint) returns boolean
language plpgsql as $$
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
               s.cleanup, s.runtime, '', '', '{}', s.run_timeout, s.task_hash, s.traceparent, s.thinking, 1
        from jsonb_to_record(p_session) as s (
            session_id text, request_id text, payload_hash text, agent_id text, label text, model text, mode text, context text, cleanup text,
            runtime text, run_timeout interval, task_hash text, traceparent text, thinking text
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

-- PROVISIONING -> ACTIVE. Locks the session, and takes its time out of the queue. Raises no_data_found where it is no longer being spawned.
-- Index: sessions_pkey, dispatch_pkey.
create function activate_session(p_tenant_id text, p_session_id text, p_receipt jsonb) returns void language plpgsql as $$
begin
    update sessions s set state = 'ACTIVE', receipt = p_receipt
    where s.tenant_id = p_tenant_id and s.session_id = p_session_id and s.state = 'PROVISIONING';
    if not found then
        raise exception 'the session is no longer being spawned' using errcode = 'no_data_found';
    end if;
    delete from dispatch d where d.tenant_id = p_tenant_id and d.kind = 'SPAWN' and d.subject_id = p_session_id;
end
$$;
