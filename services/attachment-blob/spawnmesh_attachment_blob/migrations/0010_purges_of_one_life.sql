-- A purge is of one life of a tenant: one that comes late keeps its hands off the tenant that was created anew.

-- While purging: the last settings_version of the tenant that is to go; 0 where nobody said, as replicas of the version before do not. Else 0.
alter table attachment_tenants add column purged_version bigint not null default 0;
