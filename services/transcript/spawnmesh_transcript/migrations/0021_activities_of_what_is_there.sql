-- A tenant that was purged gets no row by what is recorded late.

-- Records activities in their order, those of transcripts that are not there left out; where none is there, it writes nothing. Whoever records holds the
-- tenant's lock until the commit, so positions rise in the order of commits: who has read up to one misses nothing below it. Gives the newest position; none
-- where nothing was recorded. Indexes: the primary keys.
create or replace function record_activities(p_tenant_id text, p_session_ids text[], p_bodies bytea[]) returns setof bigint language plpgsql as $$
declare
    newest bigint;
begin
    if not enter_tenant(p_tenant_id) then
        return;
    end if;
    perform hold_activities(p_tenant_id);
    perform from unnest(p_session_ids) as given (session_id)
    where exists (
        select from transcripts t where t.tenant_id = p_tenant_id and t.session_id = given.session_id and t.state = 'LIVE'
    );
    if not found then
        return;
    end if;
    insert into activity_heads as h (tenant_id, position)
    values (p_tenant_id, cardinality(p_bodies))
    on conflict (tenant_id) do update
    set position = h.position + cardinality(p_bodies)
    returning position into newest;
    insert into activities (tenant_id, position, session_id, create_time, body)
    select p_tenant_id, newest - cardinality(p_bodies) + given.number, given.session_id, clock_timestamp(), given.body
    from unnest(p_session_ids, p_bodies) with ordinality as given (session_id, body, number)
    where exists (
        select from transcripts t where t.tenant_id = p_tenant_id and t.session_id = given.session_id and t.state = 'LIVE'
    );
    if found then
        return next newest;
    end if;
end
$$;
