-- Rows are found by their ids through an index that finds nothing else, also where the planner knows too little of a tenant to tell one index from
-- another; runs have an order that no process's clock decides; a run says which draft is being made its answer.

-- An index that begins with the tenant looks as good as the one for the id that is asked for, where a tenant seems to have one row or none. So those
-- that are for something else begin with that; and those on times are partial, on a condition that every row fulfils and only a statement that
-- looks for times has.
create unique index sessions_request_idx on sessions (request_id, tenant_id);
create index sessions_child_idx on sessions (parent_session_id, tenant_id, session_id);
create index sessions_unarchived_idx on sessions (tenant_id, end_time) where end_time >= '-infinity' and archive_time is null and delete_time is null;
create index sessions_undeleted_idx on sessions (tenant_id, end_time, session_id) where end_time >= '-infinity' and delete_time is null;
create index sessions_forgotten_idx on sessions (tenant_id, delete_time) where delete_time >= '-infinity';
alter table sessions drop constraint sessions_tenant_id_request_id_key;
drop index sessions_parent_idx, sessions_to_archive_idx, sessions_to_delete_idx, sessions_deleted_idx;

create index session_events_prune_idx on session_events (tenant_id, event_time) where event_time >= '-infinity';
drop index session_events_time_idx;

create index dispatch_tenant_due_idx on dispatch (tenant_id, kind, due_time) where due_time >= '-infinity';
create index dispatch_run_expire_idx on dispatch (expire_time) where kind = 'RUN';
create index dispatch_last_attempt_idx on dispatch (due_time) where kind = 'RUN' and attempts_left <= 0;
create index dispatch_overdue_idx on dispatch (due_time) where kind <> 'RUN';
drop index dispatch_due_idx, dispatch_expire_idx;

-- position: later runs of a session have higher ones; 0 for those that were there before it, whose ids tell. final_entry_id: the draft that is being
-- made the answer, decided when no message waited; empty while nothing is decided.
create sequence runs_position_seq;
alter table runs
    add column position       bigint not null default 0,
    add column final_entry_id text   not null default '';
alter table runs alter column position set default nextval('runs_position_seq');
create index runs_newest_idx on runs (session_id, tenant_id, position, run_id);
create unique index runs_live_session_idx on runs (session_id, tenant_id) where state in ('QUEUED', 'RUNNING', 'FINALIZING');
drop index runs_session_idx, runs_live_idx;
