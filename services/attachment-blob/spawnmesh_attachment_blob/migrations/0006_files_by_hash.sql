-- Files by their hash, in an index that does not begin with the tenant: to a planner that was told of few rows, it looked as good for the files of one set as
-- the primary key, and all files of the tenant were read for each set.

drop index set_files_sha256_idx;
create index set_files_sha256_idx on set_files (sha256, tenant_id);
