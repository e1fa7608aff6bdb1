"""Contract tests of the services, on a cluster.

These are contract tests of the session service and of the services that it calls, and of the
summaries of transcripts. They run here a second time, with the rows of tenants on other nodes than
the queue and the jobs.
"""

from tests.contract.session.approvals.test_approval_ends import (
    test_InterruptRun__a_text_withdraws_the_approval_and_the_run_goes_on_with_it,
    test_InterruptRun__ends_a_waiting_run_at_once_and_the_session_goes_on,
    test_RequestApproval__after_its_time_the_call_is_denied_and_the_run_goes_on,
)
from tests.contract.session.approvals.test_approval_races import (
    test_DecideApproval__of_all_who_decide_at_a_time_one_wins,
)
from tests.contract.session.approvals.test_approvals import (
    test_ListApprovals__filters_and_pages,
    test_RequestApproval__the_run_waits_without_a_lease_and_goes_on_after_the_decision,
    test_TakeDecision__an_approved_call_is_begun_once,
)
from tests.contract.session.budgets.test_budget_waits import (
    test_AwaitBudget__after_max_wait_the_run_fails,
    test_AwaitBudget__the_run_waits_without_a_lease_and_goes_on_when_the_limit_is_raised,
    test_UpdateBudget__a_run_waits_on_for_the_next_of_its_budgets,
    test_UpdateBudget__no_run_waits_on_beside_a_raised_limit,
)
from tests.contract.session.budgets.test_budgets import (
    test_AdmitModelCall__a_family_shares_the_budgets_of_all_its_ancestors,
    test_DeleteSession__leaves_no_budget_and_no_open_call,
    test_GetSessionUsage__sums_the_ended_runs_of_the_family,
)
from tests.contract.session.budgets.test_model_calls import (
    test_AdmitModelCall__a_family_at_work_exceeds_its_budget_by_one_call_of_each_run,
    test_AdmitModelCall__calls_of_a_run_at_the_same_time_count_with_the_most_they_may_use,
    test_RecordModelCall__a_call_that_nothing_reports_counts_with_the_most,
)
from tests.contract.session.runs.test_interrupts import (
    test_InterruptRun__only_messages_behind_it_begin_a_run,
    test_InterruptRun__run_that_no_runner_holds_ends_at_once,
    test_InterruptRun__runner_ends_the_run_and_the_session_takes_the_next_message,
    test_InterruptRun__text_stops_the_turn_until_the_run_has_read_it,
)
from tests.contract.session.runs.test_lost_leases import (
    test_old_holder_changes_nothing_in_its_own_session,
)
from tests.contract.session.runs.test_run_changes import (
    test_WatchRunChanges__tells_of_interrupts_and_kills_and_of_no_other_tenant,
)
from tests.contract.session.runs.test_runs import (
    test_ClaimRuns__no_run_is_handed_out_twice,
    test_ClaimRuns__tenant_gets_no_more_runs_at_once_than_its_limit,
    test_ClaimRuns__tenant_with_few_runs_is_served_before_one_with_many,
    test_FailRun__old_holder_is_refused_and_nothing_changes,
    test_FinalizeRun__messages_are_read_first,
    test_FinalizeRun__old_holder_is_refused_and_nothing_changes,
    test_FinalizeRun__parent_hears_once,
    test_HeartbeatRun__lease_lost_after_a_takeover,
    test_KillSession__ends_each_session_of_the_family_once,
    test_ReleaseRun__uses_no_attempt,
    test_SendMessage__starts_a_new_run_where_none_is_live,
    transcript,
)
from tests.contract.session.runs.test_watch_session import (
    test_WatchSession__ends_at_the_newest_event_of_a_session_that_is_open,
    test_WatchSession__every_event_once_and_in_order_from_any_cursor,
)
from tests.contract.session.spawn.test_spawn import (
    test_SpawnSession__children_limit_holds_for_calls_at_once,
    test_SpawnSession__queue_full,
    test_SpawnSession__twenty_calls_at_once_spawn_once,
)
from tests.contract.session.tenants.test_isolation import (
    test_run_sees_its_own_family_only,
    test_session_of_another_tenant_is_not_found_by_any_call,
    test_statement_without_where_sees_its_tenant_only,
)
from tests.contract.session.tenants.test_tenant_deletion import (
    test_CreateTenant__of_a_deleted_one_begins_anew,
    test_DeleteTenant__beside_spawns_and_by_several_at_once,
    test_DeleteTenant__refuses_at_once_kills_and_leaves_nothing_anywhere,
)
from tests.contract.transcript.compaction.test_compaction_hooks import (
    test_a_purge_of_the_tenant_deletes_its_jobs_and_those_of_a_worker,
    test_a_running_worker_publishes_summaries_without_waiting_for_a_round,
    test_each_compaction_is_published_to_an_observer_once_and_exactly,
)
from tests.support.transcript.compaction_stage import compaction_mesh, scripted_model, stage
from tests.support.transcript.fixtures import service, superuser

__all__ = [
    "compaction_mesh",
    "scripted_model",
    "service",
    "stage",
    "superuser",
    "test_AdmitModelCall__a_family_at_work_exceeds_its_budget_by_one_call_of_each_run",
    "test_AdmitModelCall__a_family_shares_the_budgets_of_all_its_ancestors",
    "test_AdmitModelCall__calls_of_a_run_at_the_same_time_count_with_the_most_they_may_use",
    "test_AwaitBudget__after_max_wait_the_run_fails",
    "test_AwaitBudget__the_run_waits_without_a_lease_and_goes_on_when_the_limit_is_raised",
    "test_ClaimRuns__no_run_is_handed_out_twice",
    "test_ClaimRuns__tenant_gets_no_more_runs_at_once_than_its_limit",
    "test_ClaimRuns__tenant_with_few_runs_is_served_before_one_with_many",
    "test_CreateTenant__of_a_deleted_one_begins_anew",
    "test_DecideApproval__of_all_who_decide_at_a_time_one_wins",
    "test_DeleteSession__leaves_no_budget_and_no_open_call",
    "test_DeleteTenant__beside_spawns_and_by_several_at_once",
    "test_DeleteTenant__refuses_at_once_kills_and_leaves_nothing_anywhere",
    "test_FailRun__old_holder_is_refused_and_nothing_changes",
    "test_FinalizeRun__messages_are_read_first",
    "test_FinalizeRun__old_holder_is_refused_and_nothing_changes",
    "test_FinalizeRun__parent_hears_once",
    "test_GetSessionUsage__sums_the_ended_runs_of_the_family",
    "test_HeartbeatRun__lease_lost_after_a_takeover",
    "test_InterruptRun__a_text_withdraws_the_approval_and_the_run_goes_on_with_it",
    "test_InterruptRun__ends_a_waiting_run_at_once_and_the_session_goes_on",
    "test_InterruptRun__only_messages_behind_it_begin_a_run",
    "test_InterruptRun__run_that_no_runner_holds_ends_at_once",
    "test_InterruptRun__runner_ends_the_run_and_the_session_takes_the_next_message",
    "test_InterruptRun__text_stops_the_turn_until_the_run_has_read_it",
    "test_KillSession__ends_each_session_of_the_family_once",
    "test_ListApprovals__filters_and_pages",
    "test_RecordModelCall__a_call_that_nothing_reports_counts_with_the_most",
    "test_ReleaseRun__uses_no_attempt",
    "test_RequestApproval__after_its_time_the_call_is_denied_and_the_run_goes_on",
    "test_RequestApproval__the_run_waits_without_a_lease_and_goes_on_after_the_decision",
    "test_SendMessage__starts_a_new_run_where_none_is_live",
    "test_SpawnSession__children_limit_holds_for_calls_at_once",
    "test_SpawnSession__queue_full",
    "test_SpawnSession__twenty_calls_at_once_spawn_once",
    "test_TakeDecision__an_approved_call_is_begun_once",
    "test_UpdateBudget__a_run_waits_on_for_the_next_of_its_budgets",
    "test_UpdateBudget__no_run_waits_on_beside_a_raised_limit",
    "test_WatchRunChanges__tells_of_interrupts_and_kills_and_of_no_other_tenant",
    "test_WatchSession__ends_at_the_newest_event_of_a_session_that_is_open",
    "test_WatchSession__every_event_once_and_in_order_from_any_cursor",
    "test_a_purge_of_the_tenant_deletes_its_jobs_and_those_of_a_worker",
    "test_a_running_worker_publishes_summaries_without_waiting_for_a_round",
    "test_each_compaction_is_published_to_an_observer_once_and_exactly",
    "test_old_holder_changes_nothing_in_its_own_session",
    "test_run_sees_its_own_family_only",
    "test_session_of_another_tenant_is_not_found_by_any_call",
    "test_statement_without_where_sees_its_tenant_only",
    "transcript",
]
