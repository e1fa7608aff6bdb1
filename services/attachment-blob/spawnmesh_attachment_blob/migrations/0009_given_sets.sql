-- A set that is to be staged, as one JSON object: eight lists and texts that are written into a statement one by one cost its sender more than all that is done
-- with them here.
create type given_set as (
    limits bigint[], set_id text, session_id text, names text[], sizes bigint[], hashes text[], mime_types text[], uploaded text[], key_suffix text
);

-- `stage_set`, of a `given_set`.
create function stage_given_set(p_tenant_id text, p_set jsonb, out outcome text, out unstored text[], out create_time timestamptz)
language plpgsql as $$
declare
    given given_set := jsonb_populate_record(null::given_set, p_set);
begin
    select s.outcome, s.unstored, s.create_time into outcome, unstored, create_time
    from stage_set(
        p_tenant_id, given.limits, given.set_id, given.session_id, given.names, given.sizes, given.hashes, given.mime_types, given.uploaded,
        given.key_suffix
    ) s;
end;
$$;
