-- What holds for a tenant's plugins, as the session service has told it. A tenant that nothing was told of has no row.

create table tenants (
    tenant_id text not null primary key,
    settings_version bigint not null,
    mask_secrets boolean not null
);
alter table tenants enable row level security;
alter table tenants force row level security;
create policy tenant on tenants
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- Whether content is shown without secrets. The argument sets the scope; it is there before the row is looked for.
create function masks_secrets(p_tenant_id text) returns boolean
    language plpgsql volatile
    as $$
    begin
        return coalesce((select t.mask_secrets from tenants t where t.tenant_id = p_tenant_id), false);
    end
    $$;
