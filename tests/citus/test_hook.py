"""Contract tests of the hook service, on a cluster: gates, revisions and the delivery of events."""

import pytest

from tests.contract.hook.conftest import (
    deliveries,
    mesh,
    outbox,
    replica,
    shared_mesh,
    tenant,
)
from tests.contract.hook.events.test_event_delivery import (
    test_a_running_worker_delivers,
    test_PublishEvents__a_known_key_adds_no_delivery,
    test_the_backlog_of_one_tenant_is_delivered,
)
from tests.contract.hook.gates.test_dispatch_before_agent_finalize import (
    test_DispatchBeforeAgentFinalize__a_restart_does_not_reset_the_count,
    test_DispatchBeforeAgentFinalize__concurrent_calls_with_one_key_get_one_decision,
    test_DispatchBeforeAgentFinalize__concurrent_drafts_get_at_most_three_revisions,
    test_DispatchBeforeAgentFinalize__revises_are_numbered_and_capped,
)
from tests.contract.hook.gates.test_dispatch_before_spawn import (
    test_DispatchBeforeSpawn__allowed_by_all,
    test_DispatchBeforeSpawn__first_deny_by_priority_decides,
    test_DispatchBeforeSpawn__repeat_of_an_allowed_spawn_needs_no_plugin,
)

pytestmark = pytest.mark.long_citus

__all__ = [
    "deliveries",
    "mesh",
    "outbox",
    "replica",
    "shared_mesh",
    "tenant",
    "test_DispatchBeforeAgentFinalize__a_restart_does_not_reset_the_count",
    "test_DispatchBeforeAgentFinalize__concurrent_calls_with_one_key_get_one_decision",
    "test_DispatchBeforeAgentFinalize__concurrent_drafts_get_at_most_three_revisions",
    "test_DispatchBeforeAgentFinalize__revises_are_numbered_and_capped",
    "test_DispatchBeforeSpawn__allowed_by_all",
    "test_DispatchBeforeSpawn__first_deny_by_priority_decides",
    "test_DispatchBeforeSpawn__repeat_of_an_allowed_spawn_needs_no_plugin",
    "test_PublishEvents__a_known_key_adds_no_delivery",
    "test_a_running_worker_delivers",
    "test_the_backlog_of_one_tenant_is_delivered",
]
