-- A tenant that is created anew begins at a version of its settings that it never had: replicas that remember the one before know by the version alone that others
-- hold now. 0 for deletions that began under the version before.
alter table tenant_deletions add column settings_version bigint not null default 0;
