"""Bugs of one edit, each of which undoes a promise of docs/architecture/security.md."""

from tests.chaos.seeded_bugs.bug import Change, SeededBug

_RUNTIME = "libs/runtime/spawnmesh_runtime"
_SESSION = "services/session/spawnmesh_session"
_ROUTER = "services/model-router/spawnmesh_model_router"
_BLOBS = "services/attachment-blob/spawnmesh_attachment_blob"
_SANDBOX = "services/runner/spawnmesh_runner/clients/sandbox"
_CONSOLE = "services/console/spawnmesh_console"
_MCP = "services/runner/spawnmesh_runner/clients/mcp"

SECURITY_BUGS = (
    SeededBug(
        "the page of a trace shows the spans of all tenants",
        (
            Change(
                f"{_CONSOLE}/domain/trace_spans.py",
                "if tenant_id and owners.get(span.span_id) == tenant_id]",
                "if tenant_id]",
            ),
        ),
        (
            "tests/unit/console/test_trace_spans.py::test_no_span_of_another_tenant_is_ever_shown",
            "tests/contract/console/pages/test_trace_page.py::test_spans_of_other_tenants_and_of_other_traces_are_not_shown",
        ),
    ),
    SeededBug(
        "the credentials of a tenant's bucket do not deny STS",
        (
            Change(
                f"{_BLOBS}/clients/bucket_credentials.py",
                '"Statement": [allow, deny]',
                '"Statement": [allow]',
            ),
        ),
        ("tests/contract/attachment_blob/s3/test_role_chaining.py::test_a_tenants_policy_denies_sts",),
    ),
    SeededBug(
        "the trace context of a client is trusted",
        (
            Change(
                f"{_RUNTIME}/interceptors/trace.py",
                "if caller.is_of_the_mesh or caller.issuer in issuers:",
                "if caller.kind:",
            ),
        ),
        ("tests/security/test_trace_context.py::test_no_rpc_continues_the_trace_of_a_client",),
    ),
    SeededBug(
        "the role of a client is not checked",
        (Change(f"{_RUNTIME}/interceptors/auth.py", "and caller.role < role:", "and caller.role < 0:"),),
        ("tests/security/test_call_matrix.py", "tests/security/test_roles.py"),
    ),
    SeededBug(
        "an issuer may sign for the callers of others",
        (Change(f"{_RUNTIME}/tokens.py", "if not self._may_issue(issuer, named):", "if not issuer:"),),
        (
            "tests/unit/runtime/test_tokens.py::test_issuer_vouches_for_its_own_kinds_alone",
            "tests/security/test_tokens.py::test_token_that_is_not_valid_opens_nothing",
        ),
    ),
    SeededBug(
        "a revoked token is not looked up",
        (
            Change(
                f"{_RUNTIME}/interceptors/auth.py",
                "return caller.revocation_key in revoked and",
                "return not caller.kind and",
            ),
        ),
        (
            "tests/security/test_roles.py::test_token_is_revoked_in_its_tenant_alone",
            "tests/security/test_roles.py::test_tokens_of_an_ended_run_open_only_what_finds_out_itself",
        ),
    ),
    SeededBug(
        "the first of two authorization headers is believed",
        (Change(f"{_RUNTIME}/interceptors/auth.py", "if len(headers) > 1:", "if len(headers) > 2:"),),
        ("tests/security/test_tokens.py::test_call_with_two_authorization_headers_is_refused",),
    ),
    SeededBug(
        "a tenant without a known policy has no budget",
        (
            Change(
                f"{_ROUTER}/operations/policy_cache.py",
                "            raise unknown_tenant()\n",
                "            return TenantPolicy()\n",
            ),
        ),
        (
            "tests/contract/model_router/budgets/test_database_away.py"
            "::test_Generate__a_tenant_that_was_never_created_calls_no_model",
        ),
    ),
    SeededBug(
        "compressed requests are inflated",
        (
            Change(
                f"{_RUNTIME}/server_options.py",
                '("grpc.compression_enabled_algorithms_bitset", 1)',
                '("grpc.compression_enabled_algorithms_bitset", 7)',
            ),
        ),
        ("tests/security/test_compression.py",),
    ),
    SeededBug(
        "a failure that one tenant causes rests the model for all",
        (
            Change(
                f"{_ROUTER}/domain/audience.py",
                "    return Audience.TENANT\n",
                "    return Audience.ALL_TENANTS\n",
            ),
        ),
        (
            "tests/contract/model_router/cooldowns/test_poisoned_cooldowns.py"
            "::test_Generate__a_tenant_that_makes_a_model_fail_again_and_again_rests_it_for_itself",
        ),
    ),
    SeededBug(
        "the token of a limited runner claims runs of every tenant",
        (
            Change(
                f"{_SESSION}/rpc/claim_runs.py", "            caller.tenants,\n", "            frozenset(),\n"
            ),
        ),
        (
            "tests/contract/session/work_queue/test_limited_runners.py"
            "::test_ClaimRuns__gets_the_runs_of_the_named_tenants_alone",
        ),
    ),
    SeededBug(
        "a page token is not bound to its tenant",
        (
            Change(
                "libs/core/spawnmesh_core/page_tokens.py",
                "        *map(str.encode, caller),\n",
                "",
            ),
        ),
        ("tests/unit/core/test_page_tokens.py",),
    ),
    SeededBug(
        "a page token that a caller made is taken",
        (
            Change(
                "libs/core/spawnmesh_core/page_tokens.py",
                "not hmac.compare_digest(signature, _signature(text, request, caller))",
                "len(signature) < _SIGNATURE_BYTES",
            ),
        ),
        ("tests/unit/core/test_page_tokens.py",),
    ),
    SeededBug(
        "a page token never expires",
        (
            Change(
                "libs/core/spawnmesh_core/page_tokens.py",
                "> LIFETIME.total_seconds()",
                "> LIFETIME.total_seconds() * 1e9",
            ),
        ),
        ("tests/contract/session/whole_service/test_page_tokens.py",),
    ),
    SeededBug(
        "the sandbox of a tool keeps the runner's network",
        (
            Change(f"{_SANDBOX}/command_line.py", '"network": confinement.network,', '"network": True,'),
            Change(f"{_SANDBOX}/command_line.py", '[] if confinement.network else ["--unshare-net"]', "[]"),
        ),
        ("tests/security/test_hostile_tool.py",),
    ),
    SeededBug(
        "the elements of a request are not counted",
        (
            Change(
                "libs/runtime/spawnmesh_runtime/interceptors/validate.py",
                "            if count > MAX_ELEMENTS:\n",
                "            if count < 0:\n",
            ),
        ),
        ("tests/unit/runtime/test_wire_elements.py",),
    ),
    SeededBug(
        "a small message of a stream costs a tenant its bytes alone",
        (
            Change(
                "libs/runtime/spawnmesh_runtime/call_limits.py",
                "max(size, STREAM_MESSAGE_BYTES)",
                "size",
            ),
        ),
        ("tests/contract/runtime/limits/test_call_limits.py",),
    ),
    SeededBug(
        "a tenant fills the audit buffer",
        (
            Change(
                "libs/postgres/spawnmesh_postgres/audit/buffer.py",
                "            if self._shares.is_largest(party):\n",
                "            if True:\n",
            ),
        ),
        ("tests/unit/postgres/test_audit_buffer.py",),
    ),
    SeededBug(
        "the calls of a tenant's clients have no rate",
        (
            Change(
                f"{_RUNTIME}/interceptors/limits.py",
                "return caller.tenant_id or caller.revocation_key",
                'return ""',
            ),
        ),
        ("tests/contract/session/tenants/test_call_limits.py",),
    ),
    SeededBug(
        "the calls of a harness have no rate",
        (
            Change(
                f"{_RUNTIME}/interceptors/limits.py",
                "return caller.tenant_id + OF_HARNESSES",
                'return ""',
            ),
        ),
        ("tests/contract/session/tenants/test_call_limits.py",),
    ),
    SeededBug(
        "the steps of a harness need no place",
        (Change(f"{_RUNTIME}/interceptors/limits.py", "limits.step_limiter if", "None if"),),
        ("tests/contract/hook/failures/test_harness_places.py",),
    ),
    SeededBug(
        "the lines before a webhook's answer are not counted",
        (
            Change(
                "services/hook/spawnmesh_hook/clients/bounded_responses.py",
                "if self._left_bytes < 0 or self._left_responses < 0:",
                "if self._left_bytes < 0:",
            ),
        ),
        ("tests/unit/hook/test_bounded_responses.py",),
    ),
    SeededBug(
        "lines of an MCP server that are no messages give nobody a turn",
        (Change(f"{_MCP}/stdio_messages.py", "if lines_read >= _LINES_A_TURN or", "if False and"),),
        ("tests/unit/runner/test_mcp_stdio_messages.py",),
    ),
    SeededBug(
        "a renewed token of a harness is one of the mesh",
        (
            Change(
                f"{_SESSION}/rpc/heartbeat_run.py",
                "HarnessClaim(caller.harness_token_id, caller.traceparent) if caller.is_harness else None",
                "None",
            ),
        ),
        ("tests/contract/session/tenants/test_call_limits.py",),
    ),
    SeededBug(
        "runs that a revoked harness claimed go on",
        (
            Change(
                f"{_RUNTIME}/interceptors/auth.py",
                "if any(key in revoked for key in caller.further_keys):",
                "if False:",
            ),
        ),
        ("tests/contract/session/work_queue/test_limited_runners.py",),
    ),
    SeededBug(
        "fields of a request cost nothing",
        (Change(f"{_RUNTIME}/call_limits.py", "self._limits.spend_fields(self._of[0], count)", "pass"),),
        ("tests/unit/runtime/test_wire_elements.py",),
    ),
    SeededBug(
        "each call without a token has a span",
        (Change(f"{_RUNTIME}/interceptors/observe.py", "return is_observed", "return True"),),
        ("tests/unit/runtime/test_observed_calls.py",),
    ),
    SeededBug(
        "another form of a token is another token",
        (Change(f"{_RUNTIME}/claims.py", "sha256(signed.encode())", "sha256(token.encode())"),),
        ("tests/unit/runtime/test_oidc.py",),
    ),
    SeededBug(
        "denied calls are not recorded",
        (Change(f"{_RUNTIME}/interceptors/audit.py", "if call.status in DENIED:", "if not call.status:"),),
        ("tests/security/test_audit.py",),
    ),
    SeededBug(
        "a policy shows the agents of every tenant",
        (
            Change(
                f"{_SESSION}/migrations/0001_session.sql",
                "create policy tenant on agents"
                " using (tenant_id = current_setting('spawnmesh.tenant', true))",
                "create policy tenant on agents using (true)",
            ),
        ),
        ("tests/contract/session/tenants/test_isolation.py",),
    ),
    SeededBug(
        "uploads use no quota",
        (
            Change(
                f"{_BLOBS}/store/usage.sql",
                "%(size_bytes)s <= free_bytes",
                "true",
            ),
        ),
        ("tests/contract/attachment_blob/tenants/test_storage_quota.py",),
    ),
    SeededBug(
        "the chart has no TLS unless it is switched on",
        (Change("deploy/helm/spawnmesh/values.yaml", "  mode: cert-manager\n", "  mode: none\n"),),
        ("tests/deploy/test_secure_defaults.py",),
    ),
)
