-- That a gate let a spawn pass is written down by one statement, a transaction of its own.

-- Locks the session. False: it is no longer being spawned. Index: sessions_pkey.
create function pass_gate(p_tenant_id text, p_session_id text) returns boolean
language plpgsql as $$
begin
    update sessions set gate_passed = true where tenant_id = p_tenant_id and session_id = p_session_id and state = 'PROVISIONING';
    return found;
end
$$;
