-- The schema of the model router: cooldowns, tenants' policies, budgets and purges.
--
-- Every table begins with tenant_id and has row-level security. A transaction sees only the rows of
-- the tenant in the setting `spawnmesh.tenant`.

-- Cooldowns of models, credentials and providers.
--  A cooldown concerns the operator's own credentials, so it applies to every tenant. All rows
-- belong to the tenant `mesh`; no request of a caller runs in a transaction of that tenant.
--  target: MODEL `provider/model`, CREDENTIAL `provider/<digest of the key>`, PROVIDER `provider`.
-- until_time only moves later. The row is deleted when a call that began after the last failure
-- succeeds, or when an operator clears the cooldown. counted_time is the last failure that raised
-- failure_count. last_failure_time is the last failure.
--
-- Primary key: list_cooldowns reads all rows of the tenant; the other statements find one target.
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

alter table cooldowns enable row level security;
alter table cooldowns force row level security;
create policy tenant on cooldowns
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- The routing policy and the limits of each tenant, as the session service last sent them.
--  settings_version is the version of the tenant's settings. An older version never replaces a
-- newer one. blind_model_policy is empty if the operator's default applies. A limit of 0 means no
-- limit. spend_micros_per_day is in millionths of the currency of the price table.
create table tenant_policies (
    tenant_id               text    not null primary key,
    settings_version        bigint  not null check (settings_version > 0),
    blind_model_policy      text    not null
        check (blind_model_policy in ('', 'ROUTE_AROUND', 'STRIP', 'REFUSE')),
    stop_after_side_effects boolean not null,
    max_tries               integer not null check (max_tries >= 0),
    requests_per_minute     integer not null check (requests_per_minute >= 0),
    tokens_per_minute       bigint  not null check (tokens_per_minute >= 0),
    spend_micros_per_day    bigint  not null check (spend_micros_per_day >= 0)
);

alter table tenant_policies enable row level security;
alter table tenant_policies force row level security;
create policy tenant on tenant_policies
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- What each tenant used: one row for each minute and one for each day (UTC).
--
-- The first request of a minute deletes the tenant's rows that are over (delete_past_periods).
-- Primary key: count_requests and charge_usage find the current minute and day; purge_periods and
-- delete_past_periods read all rows of the tenant.
create table budget_periods (
    tenant_id     text        not null,
    period        text        not null check (period in ('MINUTE', 'DAY')),
    begin_time    timestamptz not null,
    request_count bigint      not null default 0,
    token_count   bigint      not null default 0,
    spend_micros  bigint      not null default 0,
    primary key (tenant_id, period, begin_time)
);

alter table budget_periods enable row level security;
alter table budget_periods force row level security;
create policy tenant on budget_periods
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- Purged tenants. While a row exists, the service stores no usage for the tenant.
--
-- is_done is true once no row of the tenant is left. settings_version is the last version of the
-- settings of the purged tenant; 0 if the caller gave none. PrepareTenant deletes the row when a
-- tenant with the same id is created again.
create table purged_tenants (
    tenant_id        text    not null primary key,
    is_done          boolean not null default false,
    settings_version bigint  not null default 0
);

alter table purged_tenants enable row level security;
alter table purged_tenants force row level security;
create policy tenant on purged_tenants
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- Skip rows of a purged tenant. The shared advisory lock lasts until the transaction ends, so a
-- purge (lock_tenant takes the exclusive lock) does not begin while usage is being counted.
create function skip_purged() returns trigger
    language plpgsql volatile
    as $$
    begin
        perform pg_advisory_xact_lock_shared(hashtextextended('model_router rows of ' || new.tenant_id, 0));
        if exists (select from purged_tenants where tenant_id = new.tenant_id) then
            return null;
        end if;
        return new;
    end
    $$;
create trigger skip_purged before insert on budget_periods for each row execute function skip_purged();

-- Delete up to p_limit rows of the tenant and return their number. Index: budget_periods_pkey.
--  The function deletes row by row, and it reads in the order of the index (enable_sort is off).
-- Without statistics the planner expects one row of the tenant, and a single DELETE would then
-- search the whole page again for each row.
create function purge_periods(p_tenant_id text, p_limit integer) returns bigint
language plpgsql set enable_sort = off as $$
declare
    place tid;
    row_count bigint := 0;
begin
    for place in
        select b.ctid from budget_periods b
        where b.tenant_id = p_tenant_id
        order by b.period, b.begin_time
        limit p_limit
        for update
    loop
        delete from budget_periods b where b.ctid = place;
        row_count := row_count + 1;
    end loop;
    return row_count;
end
$$;
