-- A draft that the transcript calls superseded is in no later context, so it never becomes the answer.

-- The entries of such drafts: of one that a plugin sent back, and of one that was being made the answer and is taken back, which is written down before the
-- transcript is told.
alter table runs add column superseded_entry_ids text[] not null default '{}';

-- RUNNING -> FINALIZING with this draft, where the run is held at this epoch, is not being made final, and no message waits for it; else nothing, but that a
-- draft which was being made the answer is superseded from then on. `run` is the run as it is then, all null where there is none; with its session's agent,
-- how many messages wait, and `has_begun`. A draft that was sent back begins again: its plugins say why it was. Locks the run, and counts what waits by
-- then. Index: runs_pkey, sessions_pkey, inbox_messages_unread_idx.
create or replace function begin_finalizing(
    p_tenant_id text, p_run_id text, p_epoch bigint, p_entry_id text, out run runs, out agent_id text, out waiting bigint, out has_begun boolean
) language plpgsql as $$
declare
    is_open boolean;
begin
    select * into run from runs r where r.tenant_id = p_tenant_id and r.run_id = p_run_id for update;
    select s.agent_id into agent_id from sessions s where s.tenant_id = p_tenant_id and s.session_id = run.session_id;
    select count(*) into waiting from inbox_messages m
    where m.tenant_id = p_tenant_id and m.session_id = run.session_id and m.acknowledge_time is null and m.position >= 0;
    is_open := run.epoch = p_epoch and (run.state = 'RUNNING' or run.state = 'FINALIZING' and run.final_entry_id = '');
    has_begun := is_open and waiting = 0 and run.final_entry_id in ('', p_entry_id) and run.final_entry_id <> all (run.superseded_entry_ids);
    if has_begun then
        update runs r set state = 'FINALIZING', draft_entry_id = p_entry_id where r.tenant_id = p_tenant_id and r.run_id = p_run_id
        returning * into run;
    elsif is_open and run.final_entry_id <> all (run.superseded_entry_ids || ''::text) then
        update runs r set superseded_entry_ids = r.superseded_entry_ids || r.final_entry_id where r.tenant_id = p_tenant_id and r.run_id = p_run_id
        returning * into run;
    end if;
end
$$;

-- The draft of a run that is held at this epoch is being made its answer, with this text, and no message is put before it any more; where one waits, or the
-- draft is superseded, the run is RUNNING again instead. Nothing where that was decided before. `run` is the run as it is then, all null where there is none.
-- Locks the run, and counts what waits by then. Index: runs_pkey, inbox_messages_unread_idx.
create or replace function decide_run(
    p_tenant_id text, p_run_id text, p_epoch bigint, p_entry_id text, p_text_key text, out run runs, out waiting bigint
) language plpgsql as $$
declare
    is_final boolean;
begin
    select * into run from runs r where r.tenant_id = p_tenant_id and r.run_id = p_run_id for update;
    select count(*) into waiting from inbox_messages m
    where m.tenant_id = p_tenant_id and m.session_id = run.session_id and m.acknowledge_time is null and m.position >= 0;
    if run.epoch = p_epoch and (run.state = 'RUNNING' or run.state = 'FINALIZING' and run.final_entry_id = '') then
        is_final := waiting = 0 and p_entry_id <> all (run.superseded_entry_ids);
        update runs r set
            state = case when is_final then 'FINALIZING' else 'RUNNING' end,
            draft_entry_id = case when is_final then p_entry_id else '' end,
            final_text_key = case when is_final then p_text_key else r.final_text_key end,
            final_entry_id = case when is_final then p_entry_id else r.final_entry_id end
        where r.tenant_id = p_tenant_id and r.run_id = p_run_id
        returning * into run;
    end if;
end
$$;
