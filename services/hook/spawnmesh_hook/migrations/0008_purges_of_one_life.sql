-- A purge is of one life of a tenant: one that comes late keeps its hands off the tenant that was created anew.

-- The last version of the settings of the tenant that was purged; 0 where nobody said, as replicas of the version before do not.
alter table purged_tenants add column settings_version bigint not null default 0;
