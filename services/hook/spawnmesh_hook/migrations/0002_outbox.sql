-- contracts: the release before writes to heard_events
-- Plugins that can be paused and limited, bounds of an idempotency key, what observers are still to be told, and logs that are asked about by run,
-- plugin, decision and time.

alter table plugins
    add column max_concurrent_calls integer not null default 16,
    add column paused boolean not null default false,
    add column generation bigint not null default 1;

alter table deliveries drop constraint deliveries_decision_check;
alter table deliveries
    add column attempt integer not null default 1,
    add constraint deliveries_decision_check check (decision in
        ('allow', 'deny', 'continue', 'revise', 'finalize', 'proceed', 'rewrite', 'block', 'chosen', 'changed', 'told',
         'failed', 'skipped', 'dead'));
create index deliveries_run_idx on deliveries (tenant_id, run_id, start_time desc, delivery_id desc);
create index deliveries_plugin_idx on deliveries (tenant_id, plugin, start_time desc, delivery_id desc);
create index deliveries_age_idx on deliveries (start_time);
create policy every_tenant on deliveries using (current_setting('spawnmesh.tenant', true) = '*');

alter table decisions add column decide_time timestamptz not null default now();
create index decisions_age_idx on decisions (decide_time);
create policy every_tenant on decisions using (current_setting('spawnmesh.tenant', true) = '*');

alter table run_revisions add column change_time timestamptz not null default now();
create index run_revisions_age_idx on run_revisions (change_time);
create policy every_tenant on run_revisions using (current_setting('spawnmesh.tenant', true) = '*');

-- Revisions granted for an idempotency key of a plugin, in a run.
create table revision_keys (
    tenant_id text not null,
    run_id text not null,
    plugin text not null,
    idempotency_key text not null,
    attempt_count integer not null,
    change_time timestamptz not null default now(),
    primary key (tenant_id, run_id, plugin, idempotency_key)
);
create index revision_keys_age_idx on revision_keys (change_time);

-- An event as it was published, kept for as long as the retention of the log, so that a repeat is known.
create table observed_events (
    tenant_id text not null,
    event_key text not null,
    hook text not null,
    session_id text not null,
    run_id text not null,
    event bytea not null,
    traceparent text not null,
    publish_time timestamptz not null default now(),
    primary key (tenant_id, event_key)
);
create index observed_events_age_idx on observed_events (publish_time);

-- One observer that is still to be told of an event: WAITING -> gone when it has heard, or DEAD when it was given up. A worker that tells it moves
-- `due_time` behind the time it may take, so that it is told again if the worker dies.
create table tellings (
    tenant_id text not null,
    event_key text not null,
    plugin text not null,
    state text not null default 'WAITING' check (state in ('WAITING', 'DEAD')),
    attempt_count integer not null default 0,
    due_time timestamptz not null default now(),
    primary key (tenant_id, event_key, plugin),
    foreign key (tenant_id, event_key) references observed_events on delete cascade
);
create index tellings_due_idx on tellings (due_time) where state = 'WAITING';
create index tellings_plugin_idx on tellings (tenant_id, plugin);

drop table heard_events;

alter table revision_keys enable row level security;
alter table revision_keys force row level security;
create policy tenant on revision_keys
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on revision_keys using (current_setting('spawnmesh.tenant', true) = '*');

alter table observed_events enable row level security;
alter table observed_events force row level security;
create policy tenant on observed_events
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on observed_events using (current_setting('spawnmesh.tenant', true) = '*');

alter table tellings enable row level security;
alter table tellings force row level security;
create policy tenant on tellings
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on tellings using (current_setting('spawnmesh.tenant', true) = '*');
