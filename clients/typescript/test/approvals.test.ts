import assert from "node:assert/strict";
import { test } from "node:test";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import type {
  Agent,
  Approval,
  Approvals,
  ApprovalState as State,
  Reason as ReasonName,
} from "@spawnmesh/client";
import { Reason } from "#dist/gen/spawnmesh/errors/v1/reason_pb.js";
import {
  type ApprovalSchema,
  ApprovalState,
  ExpiryPolicy,
} from "#dist/gen/spawnmesh/session/v1/approval_pb.js";
import {
  ApprovalService,
  type DecideApprovalRequest,
  type ListApprovalsRequest,
} from "#dist/gen/spawnmesh/session/v1/approval_service_pb.js";
import { RunState, SessionEventKind } from "#dist/gen/spawnmesh/session/v1/session_pb.js";
import { SessionService } from "#dist/gen/spawnmesh/session/v1/session_service_pb.js";
import type { AgentProfile } from "#dist/gen/spawnmesh/session/v1/tenant_pb.js";
import { TenantService } from "#dist/gen/spawnmesh/session/v1/tenant_service_pb.js";
import { FakeClock, happened, meshAt, refusal, serve } from "./server.js";

const ID = "apr_00000000000000000000000000";
const SESSION = "ses_00000000000000000000000000";
const TIME = new Date("2026-01-02T03:04:05.678Z");

type Wire = MessageInitShape<typeof ApprovalSchema>;
type Context = Parameters<typeof serve>[0];

async function got(t: Context, wire: Wire): Promise<Approval> {
  const url = await serve(t, (router) =>
    router.service(ApprovalService, {
      getApproval: ({ approvalId }) => ({ approval: { approvalId, ...wire } }),
    }),
  );
  return meshAt(url, new FakeClock()).approvals.get(ID);
}

function callOf(argumentsJson: string, parametersJson = ""): Wire {
  const value = { toolName: "mcp__mail__send", argumentsJson, argumentsSha256: "ff", parametersJson };
  return { state: ApprovalState.PENDING, subject: { case: "toolCall", value } };
}

/** The approvals of a mesh whose service notes the decisions. */
async function deciding(t: Context): Promise<{ approvals: Approvals; requests: DecideApprovalRequest[] }> {
  const requests: DecideApprovalRequest[] = [];
  const url = await serve(t, (router) =>
    router.service(ApprovalService, {
      decideApproval: (request) => {
        requests.push(request);
        const approval = { approvalId: ID, state: ApprovalState.APPROVED };
        return { approval, run: { state: RunState.QUEUED } };
      },
    }),
  );
  return { approvals: meshAt(url, new FakeClock()).approvals, requests };
}

test("a call that waits has its arguments, its schema and its times", async (t) => {
  const json = '{"to":"ops@example.com","ids":[1,2]}';
  const approval = await got(t, {
    ...callOf(json, '{"type":"object"}'),
    sessionId: SESSION,
    runId: "run_1",
    agentId: "writer",
    reason: "the agent's policy names the tool",
    createTime: timestampFromDate(TIME),
    expireTime: timestampFromDate(TIME),
    onExpiry: ExpiryPolicy.FAIL,
  });
  assert.deepEqual(approval, {
    approvalId: ID,
    sessionId: SESSION,
    runId: "run_1",
    agentId: "writer",
    state: "PENDING",
    subject: {
      type: "toolCall",
      toolName: "mcp__mail__send",
      arguments: { to: "ops@example.com", ids: [1, 2] },
      argumentsJson: json,
      argumentsSha256: "ff",
      parameters: { type: "object" },
    },
    reason: "the agent's policy names the tool",
    createTime: TIME,
    expireTime: TIME,
    escalateTime: undefined,
    onExpiry: "FAIL",
    decideTime: undefined,
    decidedBy: undefined,
    editedArguments: undefined,
    editedArgumentsJson: undefined,
    text: undefined,
    beginTime: undefined,
  });
});

test("a decided call has the person, the edited arguments, and the time of the call", async (t) => {
  const approval = await got(t, {
    ...callOf("{}"),
    state: ApprovalState.APPROVED,
    decideTime: timestampFromDate(TIME),
    decidedBy: "ada",
    editedArgumentsJson: '{"to":"me"}',
    beginTime: timestampFromDate(TIME),
  });
  assert.deepEqual([approval.state, approval.decidedBy, approval.decideTime], ["APPROVED", "ada", TIME]);
  assert.deepEqual([approval.editedArguments, approval.editedArgumentsJson], [{ to: "me" }, '{"to":"me"}']);
  assert.deepEqual([approval.beginTime, approval.onExpiry], [TIME, "DENY"]);
});

test("an escalated call has the time of its escalation", async (t) => {
  const approval = await got(t, {
    ...callOf("{}"),
    onExpiry: ExpiryPolicy.ESCALATE,
    escalateTime: timestampFromDate(TIME),
  });
  assert.deepEqual([approval.onExpiry, approval.escalateTime], ["ESCALATE", TIME]);
});

test("a question has its choices, and its answer", async (t) => {
  const value = { text: "Which colour?", choices: ["red", "blue"] };
  const subject = { case: "question", value } as const;
  const approval = await got(t, { state: ApprovalState.ANSWERED, subject, text: "red" });
  assert.deepEqual(approval.subject, { type: "question", ...value });
  assert.deepEqual([approval.state, approval.text], ["ANSWERED", "red"]);
});

test("a state or a subject of a newer mesh is its number or unknown", async (t) => {
  const approval = await got(t, { state: 77 as ApprovalState });
  assert.deepEqual([approval.state, approval.subject], ["77", { type: "unknown" }]);
});

for (const json of ['{"a":NaN}', "[1]", "null", '"text"']) {
  test(`arguments that are ${json} are read as their text alone`, async (t) => {
    const { subject } = await got(t, callOf(json));
    assert(subject.type === "toolCall");
    assert.deepEqual([subject.arguments, subject.argumentsJson], [undefined, json]);
  });
}

test("approvals are listed page by page with the same filter", async (t) => {
  const requests: ListApprovalsRequest[] = [];
  const url = await serve(t, (router) =>
    router.service(ApprovalService, {
      // The second page is empty, and another one follows.
      listApprovals: (request) => {
        requests.push(request);
        const { pageToken } = request;
        const approvals = pageToken === "2" ? [] : [{ approvalId: `apr_${pageToken}` }];
        return { approvals, nextPageToken: { "": "2", 2: "3" }[pageToken] ?? "" };
      },
    }),
  );
  const { approvals } = meshAt(url, new FakeClock());
  const ids: string[] = [];
  const options = { state: "PENDING", sessionId: SESSION, agentId: "writer", toolName: "send" } as const;
  for await (const { approvalId } of approvals.list(options)) ids.push(approvalId);
  assert.deepEqual(ids, ["apr_", "apr_3"]);
  for (const { state, sessionId, agentId, toolName } of requests) {
    const given = [ApprovalState.PENDING, SESSION, "writer", "send"];
    assert.deepEqual([state, sessionId, agentId, toolName], given);
  }
  assert.deepEqual(
    requests.map(({ pageToken }) => pageToken),
    ["", "2", "3"],
  );
  for await (const { approvalId } of approvals.list()) ids.push(approvalId);
  const { state, sessionId, agentId, toolName } = requests[3]!;
  assert.deepEqual([state, sessionId, agentId, toolName], [0, "", "", ""]);
  const none = approvals.list({ state: "OPEN" as State }).next();
  await assert.rejects(none, /"OPEN" is none of PENDING, APPROVED/);
});

test("each decision is sent as its kind, and returns the approval", async (t) => {
  const { approvals, requests } = await deciding(t);
  const approved = await approvals.approve(ID);
  assert.deepEqual([approved.approvalId, approved.state], [ID, "APPROVED"]);
  await approvals.approve(ID, { arguments: { to: "me", ids: [1] } });
  await approvals.approve(ID, { arguments: {} });
  await approvals.deny(ID);
  await approvals.deny(ID, { reason: "Not on Fridays." });
  await approvals.answer(ID, "red");
  const sent = requests.map(({ decision: { case: kind, value } }) => {
    if (kind === "approve") return [kind, value.argumentsJson];
    return [kind, kind === "deny" ? value.reason : value?.text];
  });
  assert.deepEqual(sent, [
    ["approve", ""],
    ["approve", '{"to":"me","ids":[1]}'],
    ["approve", "{}"],
    ["deny", ""],
    ["deny", "Not on Fridays."],
    ["answer", "red"],
  ]);
  assert(requests.every(({ approvalId }) => approvalId === ID));
});

for (const [name, value] of [
  ["null", null],
  ["a list", []],
  ["a text", "{}"],
  ["a function", () => ({})],
] as const) {
  test(`${name} as arguments is refused, and approves nothing`, async (t) => {
    const { approvals, requests } = await deciding(t);
    const call = approvals.approve(ID, { arguments: value as unknown as Record<string, unknown> });
    await assert.rejects(call, { name: "TypeError", message: /one JSON object/ });
    assert.deepEqual(requests, []);
  });
}

test("a decision is repeated after an outage, and a refusal names the decision before", async (t) => {
  const reasons: string[] = [];
  const url = await serve(t, (router) =>
    router.service(ApprovalService, {
      decideApproval: ({ decision }) => {
        assert(decision.case === "deny");
        reasons.push(decision.value.reason);
        if (reasons.length < 3) throw refusal(Code.Unavailable, "DRAINING");
        const facts = { state: "APPROVED", decided_by: "ada" };
        throw refusal(Code.FailedPrecondition, "APPROVAL_CLOSED", { facts });
      },
    }),
  );
  await assert.rejects(meshAt(url, new FakeClock()).approvals.deny(ID, { reason: "No." }), {
    name: "FailedPrecondition",
    reason: "APPROVAL_CLOSED" satisfies ReasonName,
    facts: { state: "APPROVED", decided_by: "ada" },
  });
  assert.deepEqual(reasons, ["No.", "No.", "No."]);
});

test("a wait and a watch go on while a run waits for an approval", async (t) => {
  const waiting = { runId: "run_1", state: RunState.WAITING_APPROVAL, approvalId: ID };
  const ended = { runId: "run_1", state: RunState.SUCCEEDED, resultText: "Sent." };
  let isDecided = false;
  const clock = new FakeClock();
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      getSession: () => ({ session: { sessionId: SESSION, latestRun: waiting } }),
      waitSession: ({ timeout }) => {
        if (isDecided) return { session: { sessionId: SESSION, latestRun: ended }, done: true };
        clock.pass(Number(timeout?.seconds) * 1000);
        return { session: { sessionId: SESSION, latestRun: waiting }, done: false };
      },
      watchSession: async function* () {
        const states = [RunState.WAITING_APPROVAL, RunState.QUEUED, RunState.SUCCEEDED];
        for (const [index, runState] of states.entries()) {
          yield happened({ number: BigInt(index + 1), kind: SessionEventKind.RUN, runState });
        }
      },
    }),
  );
  const session = await meshAt(url, clock).session(SESSION);
  assert.deepEqual([session.latestRun?.state, session.latestRun?.approvalId], ["WAITING_APPROVAL", ID]);
  await assert.rejects(session.result({ timeoutMs: 150_000 }), { name: "ResultTimeout" });
  assert.equal(session.latestRun?.approvalId, ID);
  isDecided = true;
  const { text, run } = await session.result();
  assert.deepEqual([text, run.state, run.approvalId], ["Sent.", "SUCCEEDED", undefined]);
  const states: unknown[] = [];
  for await (const { runState } of session.events()) states.push(runState);
  assert.deepEqual(states, ["WAITING_APPROVAL", "QUEUED", "SUCCEEDED"]);
});

test("a run whose approval expired throws RunFailed", async (t) => {
  const failure = { errorReason: Reason.APPROVAL_EXPIRED, errorMessage: "no person decided in time" };
  const latestRun = { runId: "run_1", state: RunState.FAILED, ...failure };
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      getSession: () => ({ session: { sessionId: SESSION } }),
      waitSession: () => ({ session: { sessionId: SESSION, latestRun }, done: true }),
    }),
  );
  const session = await meshAt(url, new FakeClock()).session(SESSION);
  const reason: ReasonName = "APPROVAL_EXPIRED";
  await assert.rejects(session.result(), { name: "RunFailed", state: "FAILED", reason });
});

test("an agent that is read and put again keeps its approval policy", async (t) => {
  const put: AgentProfile[] = [];
  const approval = {
    tools: ["mcp__mail__*"],
    destructiveMcpTools: true,
    timeout: durationFromMs(90_500),
    onExpiry: ExpiryPolicy.FAIL,
  };
  const url = await serve(t, (router) =>
    router.service(TenantService, {
      getAgent: ({ agentId }) => ({ agent: agentId === "free" ? { agentId } : { agentId, approval } }),
      updateAgent: ({ agent }) => {
        put.push(agent!);
        return { agent: agent! };
      },
    }),
  );
  const { agents } = meshAt(url, new FakeClock());
  const read: Agent = await agents.get("writer");
  const policy = { tools: ["mcp__mail__*"], destructiveMcpTools: true, timeoutMs: 90_500, onExpiry: "FAIL" };
  assert.deepEqual(read.approval, policy);
  assert.deepEqual((await agents.put(read)).approval, policy);
  assert.deepEqual([put[0]?.approval?.timeout?.seconds, put[0]?.approval?.timeout?.nanos], [90n, 5e8]);
  assert.equal((await agents.put(await agents.get("free"))).approval, undefined);
  const { approval: least } = await agents.put({ agentId: "writer", approval: { tools: ["*"] } });
  const defaults = { destructiveMcpTools: false, timeoutMs: undefined, onExpiry: undefined };
  assert.deepEqual(least, { tools: ["*"], ...defaults });
});
