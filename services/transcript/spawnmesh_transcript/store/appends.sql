-- name: append_entries
-- Runs as a transaction of its own for all calls, one after the other. Locks each transcript's
-- row until commit. The function documents its outcomes and its indexes.
select * from append_entries(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(calls)s, %(bodies)b,
    %(waits)s);

-- name: append_plain
-- Runs as a transaction of its own for all calls. Locks the rows of transcripts until commit,
-- and never waits. The function names its indexes.
select * from append_plain(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(calls)s, %(bodies)b);

-- name: append_with_stubs
-- Runs as a transaction of its own: makes one append with `append_entries`, and writes the stubs
-- and payloads of its entries, all or nothing. Locks the transcript's row until commit. Indexes:
-- those of the function, and the primary keys.
with appended as materialized (
    select * from append_entries(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(calls)s, %(bodies)b,
        true)
), stubbed as (
    insert into stubs (tenant_id, session_id, seq, token_count, body, is_stored, file_id,
        thinking_token_count)
    select %(tenant_id)s, %(session_id)s, appended.first_seq + stub.place, stub.token_count, stub.body,
        stub.file_id <> '', stub.file_id, stub.thinking_token_count
    from appended
    cross join unnest(%(places)s::integer[], %(token_counts)s::integer[], %(stub_bodies)b::bytea[],
        %(file_ids)s::text[], %(thinking_token_counts)s::integer[])
        as stub (place, token_count, body, file_id, thinking_token_count)
    where appended.outcome = 'APPENDED'
), kept as (
    insert into payloads (tenant_id, blob_id, session_id, seq, block_index, tool_name, about, mime_type,
        size_bytes, line_count, sha256)
    select %(tenant_id)s, file.blob_id, %(session_id)s, appended.first_seq + file.place, file.block_index,
        file.tool_name, file.about, file.mime_type, file.size_bytes, file.line_count, file.sha256
    from appended
    cross join jsonb_to_recordset(%(files)s) as file (
        blob_id text, place integer, block_index integer, tool_name text, about text, mime_type text,
        size_bytes bigint, line_count bigint, sha256 text
    )
    where appended.outcome = 'APPENDED'
)
select * from appended;
