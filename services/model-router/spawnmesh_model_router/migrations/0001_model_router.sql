-- The schema of the model router: cooldowns, tenants' policies, budgets and purges.
--
-- Every table begins with tenant_id and has row-level security. A transaction sees only the rows of
-- the tenant in the setting `spawnmesh.tenant`.

-- Cooldowns of models, credentials and providers.
--  A row of a tenant is a cooldown for this tenant alone: the failures of its calls do not take a
-- model from others. A row of `*`, which is no tenant id, is a cooldown for all tenants. The policy
-- `every_tenant` lets a replica read all rows into memory. They have no content of requests.
--  target: MODEL `provider/model`, CREDENTIAL `provider/<digest of the key>`, or
-- `provider/<digest of the key>/model` if the cooldown concerns one model, PROVIDER `provider`.
-- until_time only moves later. The row is deleted when a call that began after the last failure
-- succeeds, when an operator clears the cooldown, or a day after its end. counted_time is the last
-- failure that raised failure_count. last_failure_time is the last failure.
--
-- Primary key: the statements find one target, or all of a tenant. Index cooldowns_until_idx:
-- list_cooldowns.
create table cooldowns (
    tenant_id         text        not null,
    scope             text        not null check (scope in ('MODEL', 'CREDENTIAL', 'PROVIDER')),
    target            text        not null,
    until_time        timestamptz not null,
    failure_count     integer     not null check (failure_count > 0),
    reason            text        not null,
    counted_time      timestamptz not null,
    last_failure_time timestamptz not null,
    primary key (tenant_id, scope, target)
);

create index cooldowns_until_idx on cooldowns (until_time);
comment on table cooldowns is 'citus: local';

alter table cooldowns enable row level security;
alter table cooldowns force row level security;
create policy tenant on cooldowns
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on cooldowns for select using (current_setting('spawnmesh.tenant', true) = '*');

-- The last failure of each target that a request may have caused and no other tenant has confirmed.
--
-- All rows are of `*`: they say that a call of failed_tenant_id failed, and when. The failure of
-- another tenant within a few minutes deletes the row and starts a cooldown for all tenants. A call
-- that began after the failure and succeeds deletes the row, too.
create table unconfirmed_failures (
    tenant_id        text        not null check (tenant_id = '*'),
    scope            text        not null check (scope in ('MODEL', 'CREDENTIAL', 'PROVIDER')),
    target           text        not null,
    failed_tenant_id text        not null,
    reason           text        not null,
    failure_time     timestamptz not null,
    primary key (tenant_id, scope, target)
);
comment on table unconfirmed_failures is 'citus: local';

alter table unconfirmed_failures enable row level security;
alter table unconfirmed_failures force row level security;
create policy tenant on unconfirmed_failures
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- The routing policy and the limits of each tenant, as the session service last sent them.
--  settings_version is the version of the tenant's settings. An older version never replaces a
-- newer one. blind_model_policy is empty if the operator's default applies. A limit of 0 means no
-- limit. spend_micros_per_day is in millionths of the currency of the price table. trace_content
-- lets spans have the messages of calls.
create table tenant_policies (
    tenant_id               text    not null primary key,
    settings_version        bigint  not null check (settings_version > 0),
    blind_model_policy      text    not null
        check (blind_model_policy in ('', 'ROUTE_AROUND', 'STRIP', 'REFUSE')),
    stop_after_side_effects boolean not null,
    max_tries               integer not null check (max_tries >= 0),
    requests_per_minute     integer not null check (requests_per_minute >= 0),
    tokens_per_minute       bigint  not null check (tokens_per_minute >= 0),
    spend_micros_per_day    bigint  not null check (spend_micros_per_day >= 0),
    trace_content           boolean not null,
    tenant_class            text    not null -- A name of the operator; empty without one.
);

alter table tenant_policies enable row level security;
alter table tenant_policies force row level security;
create policy tenant on tenant_policies
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- The usage of each tenant: one row for each minute and one for each day (UTC).
--
-- The first request of a minute deletes the tenant's rows that are over (delete_past_periods), so a
-- tenant has at most some seventy.
-- Primary key: count_requests and charge_usage find the current minute and day; delete_past_periods
-- reads all rows of the tenant.
-- PostgreSQL parses the text of a table's constraint again for each insert, and keeps that of a
-- domain.
create domain used_amount as bigint check (value >= 0);

create table budget_periods (
    tenant_id     text        not null,
    period        text        not null check (period in ('MINUTE', 'DAY')),
    begin_time    timestamptz not null,
    request_count used_amount not null default 0,
    token_count   used_amount not null default 0,
    spend_micros  used_amount not null default 0,
    reserved_micros used_amount not null default 0, -- Of a day: the sum of its rows in budget_reservations.
    primary key (tenant_id, period, begin_time)
);

alter table budget_periods enable row level security;
alter table budget_periods force row level security;
create policy tenant on budget_periods
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- The largest cost of each call in progress of a tenant with a limit of its spending. A call
-- removes its row when its last cost is charged. After a crash, the row expires with the deadline
-- of the call: the next admission or charge of the tenant removes it.
--
-- A transaction that writes here has locked the row of the current day in budget_periods. Primary
-- key: release_reservations; it also reads all rows of the tenant for those that have expired.
create table budget_reservations (
    tenant_id      text        not null,
    reservation_id text        not null,
    day_time       timestamptz not null, -- The begin_time of its day in budget_periods.
    spend_micros   used_amount not null,
    expire_time    timestamptz not null,
    primary key (tenant_id, reservation_id)
);

alter table budget_reservations enable row level security;
alter table budget_reservations force row level security;
create policy tenant on budget_reservations
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- The charged usage of each tenant, for people: one row for each day (UTC), agent and model. The
-- limits of a tenant hold by budget_periods: these rows come about a second late, and the last ones
-- are lost with a replica that is killed.
--
-- agent_id is empty for calls that no run made. At most 200 agents of a day have rows of their own;
-- `*` has the further ones. Replicas that add agents at the same moment can exceed that number.
-- Each transaction that adds to a tenant's rows deletes those that are older than 90 days.
--
-- Primary key: add_spend finds a row; list_agents, list_spend and delete_past_days read days. The
-- collation makes sums over many rows cheap.
create table spend_days (
    tenant_id               text        not null,
    day                     date        not null,
    agent_id                text        collate "C" not null check (length(agent_id) <= 63),
    model                   text        collate "C" not null check (model like '%/%'),
    call_count              used_amount not null,
    input_token_count       used_amount not null,
    output_token_count      used_amount not null,
    cache_read_token_count  used_amount not null,
    cache_write_token_count used_amount not null,
    cost_micros             used_amount not null,
    primary key (tenant_id, day, agent_id, model)
);

alter table spend_days enable row level security;
alter table spend_days force row level security;
create policy tenant on spend_days
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- The failed calls of each tenant at providers, for people: one row for each hour (UTC), model and
-- reason, written as spend_days is.
--
-- failover_count are those after which another candidate was called, and end_count those after
-- which none was: the call had no answer. After the others the same candidate was called again. The
-- rows are bounded: models are configured, and reasons are an enum. Each transaction that adds to a
-- tenant's rows deletes those that are older than 168 hours.
--
-- Primary key: add_failures finds a row; list_failures and delete_past_hours read hours.
create table failure_hours (
    tenant_id      text        not null,
    hour_time      timestamptz not null check (mod(extract(epoch from hour_time), 3600) = 0),
    model          text        collate "C" not null check (model like '%/%'),
    reason         text        collate "C" not null,
    failure_count  used_amount not null,
    failover_count used_amount not null,
    end_count      used_amount not null,
    primary key (tenant_id, hour_time, model, reason),
    check (failover_count + end_count <= failure_count)
);

alter table failure_hours enable row level security;
alter table failure_hours force row level security;
create policy tenant on failure_hours
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- Tenants that are purged, or were. No usage is stored for them until they are created anew. See
-- `spawnmesh_postgres.tenant_purges`.
create table purged_tenants (
    tenant_id        text        not null primary key,
    settings_version bigint      not null, -- The newest settings of the purged tenant, or 0.
    begin_time       timestamptz not null default now(),
    end_time         timestamptz -- When nothing of the tenant was left.
);

alter table purged_tenants enable row level security;
alter table purged_tenants force row level security;
create policy tenant on purged_tenants
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- The audit log: calls that changed something, and denied calls. Ids, never content. The events of
-- a tenant are a chain: each has the hash of the one before it and of itself. The rows outlive the
-- tenant. Events without a tenant have the tenant '*'. The service reads and adds events, and moves
-- the ends of chains; only the owner of the schema removes events, from the beginning of a chain.
-- See `spawnmesh_postgres.audit`.
create table audit_chains (
    tenant_id       text   not null primary key,
    last_sequence   bigint not null default 0,
    last_hash       bytea  not null default decode(repeat('00', 32), 'hex'),
    hidden_sequence bigint not null default 0, -- The last event of an earlier tenant of this name.
    cut_sequence    bigint not null default 0, -- The last event that the retention removed,
    cut_hash        bytea  not null default decode(repeat('00', 32), 'hex'), -- and its hash.
    check (cut_sequence <= last_sequence)
);
comment on table audit_chains is 'citus: local';
create table audit_events (
    tenant_id   text        not null,
    sequence    bigint      not null,
    event_id    text        not null,
    event_time  timestamptz not null,
    last_time   timestamptz not null,
    call_count  bigint      not null,
    method      text        not null,
    caller_kind text        not null,
    subject     text        not null,
    token_id    text        not null,
    resources   text[]      not null,
    code        text        not null,
    reason      text        not null,
    trace_id    text        not null,
    peer        text        not null,
    hash        bytea       not null,
    primary key (tenant_id, sequence)
);
comment on table audit_events is 'citus: local';
-- list_events.
create index audit_events_time_idx on audit_events (event_time, tenant_id, sequence);
-- list_tenant_events.
create index audit_events_tenant_idx on audit_events (tenant_id, event_time, sequence);
-- find_stored_events.
create index audit_events_id_idx on audit_events (event_id);
alter table audit_chains enable row level security;
alter table audit_chains force row level security;
create policy tenant on audit_chains for select
    using (tenant_id = current_setting('spawnmesh.tenant', true));
create policy new_tenant on audit_chains for update
    using (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on audit_chains for select
    using (current_setting('spawnmesh.tenant', true) = '*');
create policy adding on audit_chains for insert
    with check (current_setting('spawnmesh.tenant', true) = '*');
create policy advancing on audit_chains for update
    using (current_setting('spawnmesh.tenant', true) = '*');
alter table audit_events enable row level security;
alter table audit_events force row level security;
create policy tenant on audit_events for select
    using (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on audit_events for select
    using (current_setting('spawnmesh.tenant', true) = '*');
create policy adding on audit_events for insert
    with check (current_setting('spawnmesh.tenant', true) = '*');
create policy retention on audit_events for delete to current_user
    using (current_setting('spawnmesh.tenant', true) = '*');
