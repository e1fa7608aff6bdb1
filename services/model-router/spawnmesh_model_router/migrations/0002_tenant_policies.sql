-- What holds for each tenant's model calls, as the session service last told it, and what the tenant has used up.
--
-- blind_model_policy: empty where the operator's holds. The limits: 0 is none.

create table tenant_policies (
    tenant_id               text    not null primary key,
    settings_version        bigint  not null check (settings_version > 0),
    blind_model_policy      text    not null check (blind_model_policy in ('', 'ROUTE_AROUND', 'STRIP', 'REFUSE')),
    stop_after_side_effects boolean not null,
    max_tries               integer not null check (max_tries >= 0),
    requests_per_minute     integer not null check (requests_per_minute >= 0),
    tokens_per_minute       bigint  not null check (tokens_per_minute >= 0),
    spend_micros_per_day    bigint  not null check (spend_micros_per_day >= 0)
);

-- One row for a minute and one for a day; those that are over are deleted when the next one begins.
create table budget_periods (
    tenant_id     text        not null,
    period        text        not null check (period in ('MINUTE', 'DAY')),
    begin_time    timestamptz not null,
    request_count bigint      not null default 0,
    token_count   bigint      not null default 0,
    spend_micros  bigint      not null default 0,
    primary key (tenant_id, period, begin_time)
);

alter table tenant_policies enable row level security;
alter table tenant_policies force row level security;
create policy tenant on tenant_policies
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table budget_periods enable row level security;
alter table budget_periods force row level security;
create policy tenant on budget_periods
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
