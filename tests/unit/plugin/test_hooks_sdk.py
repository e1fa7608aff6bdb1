"""Writing plugins: handlers, their decisions, and tests without a mesh."""

import json
from types import ModuleType
from typing import Any

import pytest
import spawnmesh_plugin as hooks
from spawnmesh.hook.v1 import decision_pb2, observed_pb2
from spawnmesh.hook.v1 import hook_handler_service_pb2 as handler_pb
from spawnmesh.hook.v1.end_outcome_pb2 import END_OUTCOME_FAILED, EndOutcome
from spawnmesh.hook.v1.event_pb2 import HookKind
from spawnmesh_core.webhook_signature import verify_signature
from spawnmesh_plugin import FakeDispatch, HandlerFailed, Handlers, hook
from spawnmesh_plugin.handlers import OBSERVED_HOOKS, REQUEST_HOOKS
from spawnmesh_plugin.webhook import SignatureRefused, WebhookPlugin

from tests.support.hook.webhook_server import signed_headers


@hook("before_agent_finalize")
async def review(event: Any) -> decision_pb2.FinalizeDecision | None:
    return hooks.revise("Finish what is left to do.") if "later" in event.draft_text else None


def test_a_hook_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="before_agent_finalise"):
        hook("before_agent_finalise")


def test_a_module_without_handlers_or_with_two_for_one_hook_is_refused() -> None:
    with pytest.raises(ValueError, match="marked"):
        Handlers(ModuleType("empty"))

    @hook("before_agent_finalize")
    def other(event: Any) -> None:
        return

    with pytest.raises(ValueError, match="two functions"):
        Handlers([review, other])


async def test_a_handler_is_tried_with_a_fake_dispatch() -> None:
    fake = FakeDispatch([review])
    assert fake.handlers.hooks == ["before_agent_finalize"]
    assert (
        await fake.before_agent_finalize(draft_text="done later")
    ).revise.reason == "Finish what is left to do."
    assert (await fake.before_agent_finalize(draft_text="done")).HasField("continue")


async def test_without_a_handler_nobody_objects() -> None:
    fake = FakeDispatch([review])
    assert (await fake.before_spawn(task="t")).HasField("allow")
    assert (await fake.before_tool_call(tool_name="t")).HasField("proceed")
    assert (await fake.before_compaction()).compact.instructions == ""
    assert (await fake.before_compaction()).HasField("compact")
    assert (await fake.before_model_resolve()).model == ""
    assert (await fake.before_prompt_build()).ByteSize() == 0


@pytest.mark.parametrize(
    "answer", [hooks.revise(" "), hooks.revise("a\0b"), hooks.allow(), decision_pb2.FinalizeDecision()]
)
async def test_an_answer_that_the_mesh_would_refuse_fails_the_try(answer: Any) -> None:
    @hook("before_agent_finalize")
    def wrong(event: Any) -> Any:
        return answer

    with pytest.raises(HandlerFailed):
        await FakeDispatch([wrong]).before_agent_finalize()


@pytest.mark.parametrize("reason", ["", " \n", "a\0b", "é" * 513], ids=["empty", "blank", "NUL", "long"])
async def test_an_approval_needs_a_reason_for_the_person(reason: str) -> None:
    @hook("before_tool_call")
    def pay(event: Any) -> Any:
        return hooks.require_approval(reason)

    with pytest.raises(HandlerFailed):
        await FakeDispatch([pay]).before_tool_call()


async def test_every_kind_of_answer_passes_the_contract() -> None:
    @hook("before_spawn")
    def spawn(event: Any) -> Any:
        return hooks.deny("no")

    @hook("before_model_resolve")
    def model(event: Any) -> Any:
        return hooks.use_model("small")

    @hook("before_prompt_build")
    def prompt(event: Any) -> Any:
        return hooks.change_prompt(system_prompt="s", context="c", tools=[])

    @hook("before_tool_call")
    def tool(event: Any) -> Any:
        if event.tool_name == "pay":
            return hooks.require_approval("more than 100 EUR")
        return hooks.block("no") if event.tool_name == "rm" else hooks.rewrite({"path": "a"})

    @hook("delivery_target")
    def target(event: Any) -> Any:
        return hooks.deliver_to(f"chat:{EndOutcome.Name(event.outcome)}")

    @hook("before_compaction")
    def compaction(event: Any) -> Any:
        return hooks.keep_whole("not now") if event.run_id == "run_1" else hooks.compact("keep the names")

    fake = FakeDispatch([spawn, model, prompt, tool, target, compaction])
    assert (await fake.before_compaction(run_id="run_1")).keep_whole.reason == "not now"
    assert (await fake.before_compaction()).compact.instructions == "keep the names"
    assert (await fake.delivery_target(outcome=END_OUTCOME_FAILED)).target == "chat:END_OUTCOME_FAILED"
    assert (await FakeDispatch([spawn]).delivery_target()).target == ""
    assert (await fake.before_spawn()).deny.reason == "no"
    assert (await fake.before_model_resolve()).model == "small"
    assert (await fake.before_prompt_build()).HasField("tools")
    assert (await fake.before_tool_call(tool_name="rm")).block.reason == "no"
    approval = await fake.before_tool_call(tool_name="pay")
    assert approval.require_approval.reason == "more than 100 EUR"
    assert json.loads((await fake.before_tool_call(tool_name="ls")).rewrite.arguments_json) == {"path": "a"}


async def test_an_observer_receives_the_complete_event() -> None:
    heard = []

    @hook("subagent_ended")
    @hook("agent_end")
    @hook("after_compaction")
    @hook("approval_escalated")
    @hook("approval_decided")
    def hear(event: Any) -> None:
        heard.append(event)

    fake = FakeDispatch([hear])
    await fake.observe(subagent_ended=observed_pb2.SubagentEndedEvent(outcome=END_OUTCOME_FAILED))
    await fake.observe(agent_end=observed_pb2.AgentEndEvent(outcome=END_OUTCOME_FAILED))
    await fake.observe(session_end=observed_pb2.SessionEndEvent())
    await fake.observe(after_compaction=observed_pb2.AfterCompactionEvent(summary_token_count=9))
    await fake.observe(approval_escalated=observed_pb2.ApprovalEscalatedEvent(approval_id="apr_1"))
    await fake.observe(approval_decided=observed_pb2.ApprovalDecidedEvent(state="DENIED"))
    assert [event.WhichOneof("event") for event in heard] == [
        "subagent_ended",
        "agent_end",
        "after_compaction",
        "approval_escalated",
        "approval_decided",
    ]


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_plJ3nmyCDGBKInavdOK15jsl"
BODY = json.dumps({"hook": "BEFORE_AGENT_FINALIZE", "event": {"draft_text": "later"}}).encode()


def signed(body: bytes = BODY, *, delivery: str = "dlv_1", seconds_ago: int = 0) -> dict[str, str]:
    return signed_headers(SECRET, delivery, body, seconds_ago=seconds_ago)


async def test_a_webhook_answers_a_genuine_call_once() -> None:
    webhook = WebhookPlugin(Handlers([review]), SECRET)
    answer = json.loads(await webhook.answer(signed(), BODY))
    assert answer == {"decision": {"revise": {"reason": "Finish what is left to do."}}}
    with pytest.raises(SignatureRefused, match="before"):
        await webhook.answer(signed(), BODY)
    await webhook.answer(signed(delivery="dlv_2"), BODY)


async def test_a_webhook_requires_an_approval_in_json() -> None:
    @hook("before_tool_call")
    def pay(event: Any) -> Any:
        return hooks.require_approval(f"pays {json.loads(event.arguments_json)['eur']} EUR")

    event = {"tool_name": "pay", "arguments_json": '{"eur": 200}'}
    body = json.dumps({"hook": "BEFORE_TOOL_CALL", "event": event}).encode()
    answer = json.loads(await WebhookPlugin(Handlers([pay]), SECRET).answer(signed(body), body))
    assert answer == {"decision": {"require_approval": {"reason": "pays 200 EUR"}}}


@pytest.mark.parametrize(
    ("changed", "body", "secret", "cause"),
    [
        ({"Webhook-Id": ""}, BODY, SECRET, "not signed"),
        ({"Webhook-Timestamp": ""}, BODY, SECRET, "not signed"),
        ({"Webhook-Signature": ""}, BODY, SECRET, "not signed"),
        ({}, BODY + b" ", SECRET, "not that of this secret and body"),
        ({}, BODY, OTHER_SECRET, "not that of this secret and body"),
        ({"Webhook-Id": "dlv_2"}, BODY, SECRET, "not that of this secret and body"),
        ({"Webhook-Signature": f"v1,{'A' * 43}="}, BODY, SECRET, "not that of this secret and body"),
        ({"Webhook-Signature": "v2,AAAA"}, BODY, SECRET, "of another version"),
        ({"Webhook-Signature": "v1,AAAA"}, BODY, SECRET, "malformed"),
        ({"Webhook-Signature": "v1,A"}, BODY, SECRET, "malformed"),
        ({"Webhook-Signature": "v1,é"}, BODY, SECRET, "malformed"),
        ({"Webhook-Signature": "zz"}, BODY, SECRET, "malformed"),
        ({"Webhook-Id": "\udcff"}, BODY, SECRET, "not UTF-8"),
        ({}, b"\xff" + BODY, SECRET, "not UTF-8"),
        ({"Webhook-Timestamp": "now"}, BODY, SECRET, "the time of the signature is malformed"),
        ({"Webhook-Timestamp": "nan"}, BODY, SECRET, "the time of the signature is malformed"),
        ({"Webhook-Timestamp": "9" * 400}, BODY, SECRET, "the time of the signature is malformed"),
        (signed(seconds_ago=1000), BODY, SECRET, "too old"),
    ],
)
async def test_a_forged_or_old_call_is_refused(
    changed: dict[str, str], body: bytes, secret: str, cause: str
) -> None:
    with pytest.raises(SignatureRefused, match=cause):
        await WebhookPlugin(Handlers([review]), secret).answer(signed() | changed, body)


async def test_one_of_several_signatures_is_enough() -> None:
    headers, other = signed(), signed_headers(OTHER_SECRET, "dlv_1", BODY)
    both = f"v1a,AAAA v1,A  {other['Webhook-Signature']} {headers['Webhook-Signature']}"
    assert verify_signature(SECRET, headers | {"Webhook-Signature": both}, BODY) == "dlv_1"


async def test_headers_and_body_can_be_of_any_bytes() -> None:
    headers = {name: [value.encode()] for name, value in signed().items()}
    assert await WebhookPlugin(Handlers([review]), SECRET).answer(headers, memoryview(BODY))


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_1", "whsec_é", SECRET.removeprefix("whsec_")])
async def test_a_secret_that_is_none_is_no_forged_call(secret: str) -> None:
    with pytest.raises(ValueError, match="the secret is not"):
        await WebhookPlugin(Handlers([review]), secret).answer(signed(), BODY)


# A minute on either side of the bound, for a slow test.
@pytest.mark.parametrize(("apart", "cause"), [(240, "too old"), (-240, "from the future")])
def test_clocks_may_differ_by_five_minutes(apart: int, cause: str) -> None:
    assert verify_signature(SECRET, signed(seconds_ago=apart), BODY) == "dlv_1"
    beyond = signed(seconds_ago=apart + (60 if apart > 0 else -120))
    with pytest.raises(SignatureRefused, match=cause):
        verify_signature(SECRET, beyond, BODY)


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"hook":"BEFORE_SPAWN","event":7}'])
async def test_a_call_of_another_shape_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        await WebhookPlugin(Handlers([review]), SECRET).answer(signed(body), body)


def test_handlers_can_be_written_for_every_hook_of_the_contract() -> None:
    kinds = {name.removeprefix("HOOK_KIND_").lower() for name, _ in HookKind.items()} - {"unspecified"}
    assert {*REQUEST_HOOKS, *OBSERVED_HOOKS} == kinds
    assert {f"Handle{''.join(part.title() for part in name.split('_'))}" for name in REQUEST_HOOKS} | {
        "HandleObservedEvent"
    } == {method.name for method in handler_pb.DESCRIPTOR.services_by_name["HookHandlerService"].methods}
