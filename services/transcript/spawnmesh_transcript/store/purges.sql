-- name: begin_purge
-- Waits for all transactions that hold `enter_tenant`, and keeps new ones out until commit.
select pg_advisory_xact_lock(hashtextextended('transcripts of ' || %(tenant_id)s, 0));

-- name: mark_purging
-- Locks the tenant's row. Returns no row if the tenant was created again after this version.
-- Index: tenants primary key.
insert into tenants as t (tenant_id, settings_version, mask_secrets, is_purging, purged_version)
values (%(tenant_id)s, 0, false, true, %(settings_version)s)
on conflict (tenant_id) do update
set is_purging = true, purged_version = greatest(t.purged_version, excluded.purged_version)
where excluded.purged_version = 0 or greatest(t.settings_version, t.purged_version) <= excluded.purged_version
returning tenant_id;

-- name: lock_purge
-- Locks the tenant's row, so that the tenant is not prepared before the transaction ends.
-- Returns no row if the purge has ended or belongs to a tenant that was created again. Index:
-- tenants primary key.
select from tenants
where tenant_id = %(tenant_id)s and is_purging
    and (%(settings_version)s = 0 or greatest(settings_version, purged_version) <= %(settings_version)s)
for update;

-- name: supersede_purge
-- Locks the tenant's row. Returns no row unless these settings belong to a tenant that was
-- created after the one being purged. Index: tenants primary key.
update tenants
set is_purging = false, purged_version = 0
where tenant_id = %(tenant_id)s and is_purging and purged_version > 0
    and purged_version < %(settings_version)s
returning tenant_id;

-- name: end_purge
-- Locks the tenant's row. Index: tenants primary key.
delete from tenants where tenant_id = %(tenant_id)s and is_purging;

-- name: purge_entries
-- Locks the rows that it deletes. Index: entries primary key.
with page as materialized (
    select session_id, seq from entries
    where tenant_id = %(tenant_id)s
    order by session_id, seq
    limit (select %(row_count)s::bigint)
)
delete from entries t
using (select session_id, seq from page order by session_id desc, seq desc limit 1) last
where t.tenant_id = %(tenant_id)s
    and t.session_id between (select min(session_id) from page) and (select max(session_id) from page)
    and (t.session_id, t.seq) <= (last.session_id, last.seq);

-- name: purge_appends
-- Locks the rows that it deletes. Index: appends primary key.
with page as materialized (
    select session_id, idempotency_key from appends
    where tenant_id = %(tenant_id)s
    order by session_id, idempotency_key
    limit (select %(row_count)s::bigint)
)
delete from appends t
using (select session_id, idempotency_key from page order by session_id desc, idempotency_key desc limit 1) last
where t.tenant_id = %(tenant_id)s
    and t.session_id between (select min(session_id) from page) and (select max(session_id) from page)
    and (t.session_id, t.idempotency_key) <= (last.session_id, last.idempotency_key);

-- name: purge_search_progress
-- Locks the rows that it deletes. Index: search_progress primary key.
with page as materialized (
    select session_id from search_progress
    where tenant_id = %(tenant_id)s
    order by session_id
    limit (select %(row_count)s::bigint)
)
delete from search_progress
where tenant_id = %(tenant_id)s
    and session_id between (select min(session_id) from page) and (select max(session_id) from page);

-- name: purge_search_pieces
-- Locks the rows that it deletes. Index: search_pieces primary key.
with page as materialized (
    select session_id, seq, piece from search_pieces
    where tenant_id = %(tenant_id)s
    order by session_id, seq, piece
    limit (select %(row_count)s::bigint)
)
delete from search_pieces t
using (select session_id, seq, piece from page order by session_id desc, seq desc, piece desc limit 1) last
where t.tenant_id = %(tenant_id)s
    and t.session_id between (select min(session_id) from page) and (select max(session_id) from page)
    and (t.session_id, t.seq, t.piece) <= (last.session_id, last.seq, last.piece);

-- name: purge_stubs
-- Locks the rows that it deletes. Index: stubs primary key.
with page as materialized (
    select session_id, seq from stubs
    where tenant_id = %(tenant_id)s
    order by session_id, seq
    limit (select %(row_count)s::bigint)
)
delete from stubs t
using (select session_id, seq from page order by session_id desc, seq desc limit 1) last
where t.tenant_id = %(tenant_id)s
    and t.session_id between (select min(session_id) from page) and (select max(session_id) from page)
    and (t.session_id, t.seq) <= (last.session_id, last.seq);

-- name: purge_summaries
-- Locks the rows that it deletes. Index: summaries primary key.
with page as materialized (
    select session_id, seq from summaries
    where tenant_id = %(tenant_id)s
    order by session_id, seq
    limit (select %(row_count)s::bigint)
)
delete from summaries t
using (select session_id, seq from page order by session_id desc, seq desc limit 1) last
where t.tenant_id = %(tenant_id)s
    and t.session_id between (select min(session_id) from page) and (select max(session_id) from page)
    and (t.session_id, t.seq) <= (last.session_id, last.seq);

-- name: purge_payloads
-- Locks the rows that it deletes. The blob store purges the tenant's blobs itself. Index: payloads
-- primary key.
with page as materialized (
    select session_id, seq, block_index from payloads
    where tenant_id = %(tenant_id)s
    order by session_id, seq, block_index
    limit (select %(row_count)s::bigint)
)
delete from payloads t
using (select session_id, seq, block_index from page order by session_id desc, seq desc, block_index desc limit 1) last
where t.tenant_id = %(tenant_id)s
    and t.session_id between (select min(session_id) from page) and (select max(session_id) from page)
    and (t.session_id, t.seq, t.block_index) <= (last.session_id, last.seq, last.block_index);

-- name: purge_imports
-- Locks the rows that it deletes. Index: imports primary key.
with page as materialized (
    select session_id from imports
    where tenant_id = %(tenant_id)s
    order by session_id
    limit (select %(row_count)s::bigint)
)
delete from imports
where tenant_id = %(tenant_id)s
    and session_id between (select min(session_id) from page) and (select max(session_id) from page);

-- name: purge_transcripts
-- Locks the rows that it deletes, and returns whether each was readable. Index: transcripts
-- primary key.
with page as materialized (
    select session_id from transcripts
    where tenant_id = %(tenant_id)s
    order by session_id
    limit (select %(row_count)s::bigint)
)
delete from transcripts
where tenant_id = %(tenant_id)s
    and session_id between (select min(session_id) from page) and (select max(session_id) from page)
returning state <> 'DELETED' as was_live;

-- name: purge_activities
-- Locks the rows that it deletes. No recorder is left. Index: activities primary key.
with page as materialized (
    select position from activities
    where tenant_id = %(tenant_id)s
    order by position
    limit (select %(row_count)s::bigint)
)
delete from activities
where tenant_id = %(tenant_id)s
    and position between (select min(position) from page) and (select max(position) from page);

-- name: purge_activity_heads
-- Locks the row. Index: activity_heads primary key.
delete from activity_heads where tenant_id = %(tenant_id)s and %(row_count)s > 0;
