-- Tenants that were purged, and that nothing is written for until they are made ready again.

create table purged_tenants (
    tenant_id text not null primary key,
    is_done boolean not null default false
);
alter table purged_tenants enable row level security;
alter table purged_tenants force row level security;
create policy tenant on purged_tenants
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- Whatever adds rows for a tenant keeps a purge of it from beginning until its transaction ends, and is refused once one has.
create function refuse_purged() returns trigger
    language plpgsql volatile
    as $$
    declare
        written text := current_setting('spawnmesh.tenant', true);
    begin
        perform pg_advisory_xact_lock_shared(hashtextextended('hook rows of ' || written, 0));
        if exists (select from purged_tenants where tenant_id = written) then
            raise exception 'the tenant was purged' using errcode = 'SM001';
        end if;
        return null;
    end
    $$;
create trigger refuse_purged before insert on plugins for each statement execute function refuse_purged();
create trigger refuse_purged before insert on tellings for each statement execute function refuse_purged();
create trigger refuse_purged before insert on observed_events for each statement execute function refuse_purged();
create trigger refuse_purged before insert on decisions for each statement execute function refuse_purged();
create trigger refuse_purged before insert on run_revisions for each statement execute function refuse_purged();
create trigger refuse_purged before insert on revision_keys for each statement execute function refuse_purged();
create trigger refuse_purged before insert on deliveries for each statement execute function refuse_purged();
