-- Long work that clients started. A row is open until it has an `end_time`; a job of the kind
-- `operation` with its id executes it, and deletes it some time after its end. `request` and
-- `response` are messages of the contract: ids, options and counts, never content. See
-- `spawnmesh_postgres.long_running`.
create table operations (
    tenant_id    text        not null,
    operation_id text        not null,
    method       text        not null,                -- The RPC that started it.
    request_id   text        not null,
    request      bytea       not null,
    subject      text        not null,                -- Of the token that started it.
    response     bytea,                               -- As far as it is known.
    position     text        not null default '',     -- Where the next step continues.
    step_count   bigint      not null default 0,      -- The fencing token of a step.
    done_count   bigint      not null default 0,
    total_count  bigint      not null default 0,      -- 0 if it is not known.
    retry_reason text        not null default '',
    error        bytea,                               -- A google.rpc.Status.
    create_time  timestamptz not null default now(),
    update_time  timestamptz not null default now(),
    cancel_time  timestamptz,
    end_time     timestamptz,
    primary key (tenant_id, operation_id),
    unique (tenant_id, method, request_id),
    check (error is null or end_time is not null),
    check (done_count >= 0 and total_count >= 0 and step_count >= 0)
);
-- count_open_operations.
create index operations_open_idx on operations (tenant_id) where end_time is null;
-- delete_old_operations.
create index operations_end_idx on operations (tenant_id, end_time) where end_time is not null;
alter table operations enable row level security;
alter table operations force row level security;
create policy tenant on operations using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
