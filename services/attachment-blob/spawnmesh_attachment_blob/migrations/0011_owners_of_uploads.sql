-- Ids of uploads are their owner's: the session whose runs send them, or the tenant's clients together. Two owners may give the same one.

-- `upload_id` stays the row's own key, by which replicas of the version before find it: the id that the owner gave, or, where another owner's row has
-- that for its key already, that and the owner's session behind a dot. What an owner asks for is `given_id`.
alter table uploads add column given_id text not null generated always as (split_part(upload_id, '.', 1)) stored;
create unique index uploads_owner_idx on uploads (tenant_id, given_id, session_id);
