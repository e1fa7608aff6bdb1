"""The demo's plugin: one revision, for the coordinator's first draft that is not verified."""

import pytest
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent
from spawnmesh_devstack.demo_plugin import judge

UNVERIFIED, VERIFIED = "sum of amount: 1", "sum of amount: 1\nverified: yes"


def test_unverified_first_draft_of_the_coordinator_is_sent_back():
    decision = judge(BeforeAgentFinalizeEvent(agent_id="coordinator", draft_text=UNVERIFIED))

    assert "verified: yes" in decision.revise.reason


@pytest.mark.parametrize(
    ("agent_id", "draft", "revision_count"),
    [("coordinator", VERIFIED, 0), ("coordinator", UNVERIFIED, 1), ("analyst", UNVERIFIED, 0)],
)
def test_anything_else_goes_through(agent_id, draft, revision_count):
    event = BeforeAgentFinalizeEvent(agent_id=agent_id, draft_text=draft, revision_count=revision_count)

    assert judge(event).WhichOneof("decision") == "continue"


def test_a_draft_that_only_mentions_the_phrase_is_not_verified():
    event = BeforeAgentFinalizeEvent(
        agent_id="coordinator", draft_text="I was to say verified: yes, but did not look."
    )

    assert judge(event).WhichOneof("decision") == "revise"
