-- The collector goes through rows by their ids. Those that are few have an index in this order; those that are most of their table are found by its primary
-- key, and cost the writers no second index.

create index blobs_unsettled_hash_idx on blobs (tenant_id, sha256) where state <> 'STORED';
drop index blobs_unsettled_idx;
drop index sets_attached_idx;
drop index sets_staging_idx;
drop index uploads_expire_idx;
