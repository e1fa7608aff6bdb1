"""Statements that fill the tables of the transcript service with a long transcript."""

ROWS = 2_400
"""The seq of the head of a long transcript."""

_KEY = "%(tenant_id)s, %(session_id)s"
FILL = (
    f"""
    insert into entries (tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count,
        calls, answers, is_synthetic, label,
        target_seq, writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body)
    select {_KEY}, n, 'ent_' || n, '', (array['MESSAGE', 'MESSAGE', 'LABEL'])[n %% 3 + 1],
        (array['USER', 'ASSISTANT', ''])[n %% 3 + 1], 10, '{{}}', '', false,
        (array['', '', 'SUPERSEDED'])[n %% 3 + 1],
        case when n %% 3 = 2 then n - 1 end, '', 0, '', '', now(), 'hash', convert_to(repeat('x', 50), 'UTF8')
    from generate_series(2, %(rows)s) n
    """,
    f"""
    insert into stubs (tenant_id, session_id, seq, token_count, body)
    select {_KEY}, n, 5, 'x' from generate_series(2, %(rows)s) n
    """,
    """
    insert into payloads (tenant_id, blob_id, session_id, seq, block_index, tool_name, about, mime_type,
        size_bytes, line_count, sha256)
    select %(tenant_id)s, 'blb_' || n, %(session_id)s, n, 0, '', '', '', 1, 1,
        '' from generate_series(2, %(rows)s) n
    """,
    f"""
    insert into summaries (tenant_id, session_id, seq, entry_id, first_source_seq, last_source_seq,
        source_entry_count, source_token_count,
        covered_turn_count, covered_token_count, token_count, method, model, run_id)
    select {_KEY}, n, 'ent_' || n, 1, n - 9, 1, 1, 1, 1, 5, 'NORMAL', '', ''
    from generate_series(10, %(rows)s - 10, 10) n
    """,
    """
    insert into activities (tenant_id, position, session_id, create_time, body)
    select %(tenant_id)s, n, case when n %% 10 = 0 then %(session_id)s else 'ses_of_others' end,
        now() - interval '8 days', ''
    from generate_series(1, %(rows)s) n
    """,
    f"""
    insert into appends (tenant_id, session_id, request_id, content_hash, first_seq, last_seq,
        writer_run_id, writer_epoch)
    select {_KEY}, 'key-' || n, 'x', n, n + 1, '', 0 from generate_series(2, %(rows)s - 1) n
    """,
    f"""
    insert into draft_pieces (tenant_id, session_id, epoch, number, place, begin_offset, end_offset, run_id,
        after_seq, model, kind, text)
    select {_KEY}, 0, 1, n - 1, n - 2, n - 1, '', %(rows)s, 'm', 'TEXT', 'x' from generate_series(2, %(rows)s) n
    """,
    """
    insert into transcripts (tenant_id, session_id, incarnation, forked_from_session_id, parent_session_id)
    select %(tenant_id)s, 'ses_' || n, '', '',
        case when n > 9 then 'ses_of_others' when n > 1 then %(session_id)s else '' end
    from generate_series(1, %(rows)s) n
    """,
    """
    insert into imports (tenant_id, session_id, update_time)
    select %(tenant_id)s, 'ses_' || n, now() - interval '2 days' from generate_series(1, 50) n
    """,
    "update transcripts set seq = %(rows)s where tenant_id = %(tenant_id)s and session_id = %(session_id)s",
)
"""Fills the transcript `session_id` of `tenant_id` up to seq `rows`, and its neighbours in every table."""

FILL_OTHER_TENANTS = (
    """
    insert into entries (tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count,
        calls, answers, is_synthetic, label,
        target_seq, writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body)
    select 'other-' || t, 'ses_' || t, n, 'ent_' || t || n, '', 'LABEL', '', 10, '{}', '', false,
        'SUPERSEDED', 1, '', 0, '', '', now(), '', ''
    from generate_series(1, 300) t, generate_series(2, 11) n
    """,
    """
    insert into payloads (tenant_id, blob_id, session_id, seq, block_index, tool_name, about, mime_type,
        size_bytes, line_count, sha256)
    select 'other-' || t, 'blb_' || t || n, 'ses_' || t, n, 0, '', '', '', 1, 1,
        '' from generate_series(1, 300) t, generate_series(2, 11) n
    """,
    """
    insert into activities (tenant_id, position, session_id, create_time, body)
    select 'other-' || t, n, 'ses_' || t, now(), '' from generate_series(1, 300) t, generate_series(2, 11) n
    """,
)
"""Fills 300 other tenants with ten rows each."""

FILL_SMALL_TABLES = (
    """
    insert into draft_pieces (tenant_id, session_id, epoch, number, place, begin_offset, end_offset, run_id,
        after_seq, model, kind, text)
    select 'other-' || t, 'ses_' || t, 1, 1, 1, 0, 1, 'run', 1, 'm', 'TEXT', 'x' from generate_series(1, 3000) t
    """,
    """
    insert into imports (tenant_id, session_id, update_time)
    select 'other-' || t, 'ses_' || t, now() from generate_series(1, 3000) t
    """,
    """
    insert into summaries (tenant_id, session_id, seq, entry_id, first_source_seq, last_source_seq,
        source_entry_count, source_token_count,
        covered_turn_count, covered_token_count, token_count, method, model, run_id)
    select 'other-' || t, 'ses_' || t, 10, 'ent_' || t, 1, 1, 1, 1, 1, 1, 5, 'NORMAL', '', ''
    from generate_series(1, 3000) t
    """,
)
"""Fills the tables that have few rows of a long transcript, with a row for each of 3,000 other tenants.
Reading a table of a few pages completely would be the right plan."""
