-- name: list_chain_entries
-- Takes no lock. A page ends early to stay within %(max_bytes)s of complete bodies, but has at
-- least one entry. found_count is one more than the page if there are more entries. Index: entries
-- primary key.
select
    seq, entry_id, parent_entry_id, kind, role, calls, answers, is_synthetic, label, target_seq,
    writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body, dropped_bytes,
    found_count
from (
    select *, sum(octet_length(body) + dropped_bytes) over nearest as bytes_so_far,
        row_number() over nearest as position, count(*) over () as found_count
    from (
        select *
        from entries
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq >= %(first_seq)s
        order by seq
        limit (select %(page_size)s::bigint + 1)
    ) as page
    window nearest as (order by seq)
) as measured
where position <= %(page_size)s and (bytes_so_far <= %(max_bytes)s or position = 1)
order by seq;

-- name: read_chain_hash
-- Takes no lock. Index: entries primary key.
select chain_hash
from entries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = %(seq)s;

-- name: read_verified
-- Takes no lock. Index: tenants primary key.
select verified_session_id, verified_incarnation, verified_seq, verified_chain_hash
from tenants
where tenant_id = %(tenant_id)s;

-- name: put_verified
-- Locks the tenant's row. Changes nothing if another worker moved on from %(known_session_id)s and
-- %(known_seq)s. Index: tenants primary key.
update tenants
set verified_session_id = %(session_id)s, verified_incarnation = %(incarnation)s,
    verified_seq = %(seq)s, verified_chain_hash = %(chain_hash)s
where tenant_id = %(tenant_id)s and verified_session_id = %(known_session_id)s
    and verified_seq = %(known_seq)s;
