-- name: move_claim
-- Makes the run and the epoch of a claim the current ones, or ends the claim and every lower one if
-- the new run is empty: the epoch stays, so that no ended claim returns. A claim that was never
-- acquired ends as well: the run may end before it writes, and its token outlives it. Returns the
-- head after that. `is_moved` is false, and the head is as it was when the statement began, if a
-- higher claim is current. Returns no row if there is no transcript that can be written. Deletes
-- the draft of the claim that it ends, except for a piece that is being written, which no reader
-- gets; `has_retracted` is true if it deleted any. Locks the transcript's row. Indexes: primary
-- keys.
with moved as (
    update transcripts
    set writer_run_id = %(new_run_id)s, writer_epoch = %(epoch)s
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'LIVE'
        and (writer_epoch < %(epoch)s or (writer_epoch = %(epoch)s and writer_run_id = %(run_id)s))
        and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
    returning incarnation, seq, chain_hash, writer_run_id, writer_epoch
), retracted as (
    delete from draft_pieces
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
        and epoch < %(epoch)s + (%(new_run_id)s = '')::integer
        and exists (select from moved)
    returning true
)
select incarnation, seq, chain_hash, writer_run_id, writer_epoch, true as is_moved,
    exists (select from retracted) as has_retracted
from moved
union all
select incarnation, seq, chain_hash, writer_run_id, writer_epoch, false, false
from transcripts
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'LIVE'
    and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
    and not exists (select from moved);

-- name: make_higher_claim
-- Makes the run and the epoch of a claim the current ones if the epoch is higher than that of the
-- current claim, and deletes the draft of that one, as move_claim does. Returns whether it deleted
-- any. Locks the transcript's row if it changes it. Indexes: primary keys.
with moved as (
    update transcripts
    set writer_run_id = %(run_id)s, writer_epoch = %(epoch)s
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'LIVE'
        and writer_epoch < %(epoch)s
        and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
    returning true
), retracted as (
    delete from draft_pieces
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and epoch < %(epoch)s
        and exists (select from moved)
    returning true
)
select exists (select from retracted) as has_retracted;
