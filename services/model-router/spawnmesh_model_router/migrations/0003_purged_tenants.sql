-- Tenants that were purged, and that nothing is kept or counted for until they are made ready again.

create table purged_tenants (
    tenant_id text    not null primary key,
    is_done   boolean not null default false
);

alter table purged_tenants enable row level security;
alter table purged_tenants force row level security;
create policy tenant on purged_tenants
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- Whatever counts for a tenant keeps a purge of it from beginning until its transaction ends, and counts nothing once one has.
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
