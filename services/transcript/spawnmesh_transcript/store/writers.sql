-- The claim moves by an insert that conflicts with the transcript's row, once that is locked: it
-- depends on the row that sets the scope, as an update of the table would not.

-- name: move_claim
-- Runs as a transaction of its own. Makes the run and the epoch of a claim the current ones, or
-- ends the claim and every lower one if the new run is empty: the epoch stays, so that no ended
-- claim returns. A claim that was never acquired ends as well: the run may end before it writes,
-- and its token outlives it. Returns no row if a higher claim is current, or there is no transcript
-- that can be written. Locks the transcript's row. Indexes: transcripts and tenants primary keys.
with held as materialized (
    select t.session_id
    from (select set_config('spawnmesh.tenant', %(tenant_id)s, true) as tenant_id) as scope
    cross join lateral (
        select session_id from transcripts
        where tenant_id = %(tenant_id)s and tenant_id = scope.tenant_id and session_id = %(session_id)s
            and state = 'LIVE'
            and (writer_epoch < %(epoch)s or (writer_epoch = %(epoch)s and writer_run_id = %(run_id)s))
            and (
                select is_purging from tenants
                where tenant_id = %(tenant_id)s and tenant_id = scope.tenant_id
            ) is not true
        limit 1
        for update
    ) as t
)
insert into transcripts as t (
    tenant_id, session_id, incarnation, forked_from_session_id, writer_run_id, writer_epoch
)
select %(tenant_id)s, h.session_id, '', '', %(new_run_id)s, %(epoch)s
from held h
on conflict (tenant_id, session_id) do update
set writer_run_id = excluded.writer_run_id, writer_epoch = excluded.writer_epoch
returning t.incarnation, t.seq, t.chain_hash, t.writer_run_id, t.writer_epoch;

-- name: read_head
-- Runs as a transaction of its own, after a claim that changed nothing. Takes no lock. Indexes:
-- transcripts and tenants primary keys.
select t.incarnation, t.seq, t.chain_hash, t.writer_run_id, t.writer_epoch
from (select set_config('spawnmesh.tenant', %(tenant_id)s, true) as tenant_id) as scope
cross join lateral (
    select incarnation, seq, chain_hash, writer_run_id, writer_epoch from transcripts
    where tenant_id = %(tenant_id)s and tenant_id = scope.tenant_id and session_id = %(session_id)s
        and state = 'LIVE'
        and (
            select is_purging from tenants
            where tenant_id = %(tenant_id)s and tenant_id = scope.tenant_id
        ) is not true
    limit 1
) as t;
