-- Background jobs: ids and times of work that is left. A job is waiting, or a worker has claimed it
-- until `due_time`, or it is dead: it failed for good, and waits for an operator. A job that is
-- done is deleted. See `spawnmesh_postgres.jobs`.
create table jobs (
    tenant_id     text        not null,
    kind          text        not null,
    key           text        not null,
    due_time      timestamptz not null default now(), -- Of a claimed job: when its claim ends.
    attempt_count integer     not null default 0,
    claim_id      uuid,                               -- The fencing token of the claim.
    arguments     jsonb       not null default '{}',  -- Ids, never content.
    traceparent   text        not null default '',
    create_time   timestamptz not null default now(),
    dead_time     timestamptz,
    last_error    text        not null default '',
    primary key (tenant_id, kind, key),
    check (kind <> '' and key <> ''),
    check (attempt_count >= 0),
    check (jsonb_typeof(arguments) = 'object'),
    check (dead_time is null or claim_id is null)
);
comment on table jobs is 'citus: local';
alter table jobs alter column tenant_id set statistics 0;
-- claim_jobs and count_jobs, which alone repeat the condition.
create index jobs_due_idx on jobs (kind, tenant_id, due_time) where dead_time is null;
-- list_dead_jobs and count_jobs.
create index jobs_dead_idx on jobs (tenant_id, kind, key) where dead_time >= '-infinity';
alter table jobs enable row level security;
alter table jobs force row level security;
create policy tenant on jobs using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- Ids, times and counters of the jobs, which a worker claims over all tenants. The view reads and
-- writes with the rights of the owner, and only the owner has a policy for the scope '*': in this
-- scope, the role of the service sees no other column. It reads the rest in the scope of the job's
-- tenant. The view has no condition, so nothing of the table can leak through one.
create policy every_tenant on jobs for select to current_user
    using (current_setting('spawnmesh.tenant', true) = '*');
create policy claim_of_every_tenant on jobs for update to current_user
    using (current_setting('spawnmesh.tenant', true) = '*');
create view job_queue as
    select tenant_id, kind, key, due_time, attempt_count, claim_id, create_time, dead_time from jobs;
comment on view job_queue is 'citus: local';
