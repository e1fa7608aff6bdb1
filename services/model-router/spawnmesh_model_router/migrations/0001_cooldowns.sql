-- Rests of models, credentials and providers.
--
-- They concern the operator's own credentials and so every tenant alike; all rows belong to the tenant `mesh`, under which no caller's
-- transaction is ever run here. The table still leads with tenant_id and is closed by row-level security like any other.
--
-- target: MODEL `provider/model`, CREDENTIAL `provider/<digest of the key>`, PROVIDER `provider`.
-- until_time only ever moves later; the row goes when a call that began after the last failure has succeeded.

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
