-- name: scan_references
-- No lock, no bodies but their lengths. Index: stubs primary key.
select seq, token_count, octet_length(body) as size_bytes, is_stored
from stubs
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq between %(first_seq)s and %(last_seq)s
order by seq;
