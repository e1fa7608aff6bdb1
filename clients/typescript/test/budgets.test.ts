import assert from "node:assert/strict";
import { test } from "node:test";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, durationMs, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import type { Budget, BudgetChange } from "@spawnmesh/client";
import {
  BudgetLimit,
  type GetSessionUsageResponseSchema,
  type SessionBudgetSchema,
  type UpdateBudgetRequest,
} from "#dist/gen/spawnmesh/session/v1/budget_pb.js";
import { BudgetService } from "#dist/gen/spawnmesh/session/v1/budget_service_pb.js";
import { RunState, SessionEventKind } from "#dist/gen/spawnmesh/session/v1/session_pb.js";
import {
  SessionService,
  type SpawnSessionRequest,
} from "#dist/gen/spawnmesh/session/v1/session_service_pb.js";
import type { Mesh } from "#dist/mesh.js";
import { FakeClock, happened, meshAt, refusal, serve } from "./server.js";

const ID = "ses_00000000000000000000000000";
const PARENT = "ses_00000000000000000000000001";
const TIME = new Date("2026-01-02T03:04:05.678Z");
const OWN: MessageInitShape<typeof SessionBudgetSchema> = {
  sessionId: ID,
  budget: { maxCostMicros: 500_000n, maxModelCallCount: 40n, maxRunTime: durationFromMs(600_000) },
  usage: { costMicros: 520_000n, tokenCount: 7n, modelCallCount: 3n, runTime: durationFromMs(1500) },
  reachedLimits: [BudgetLimit.COST],
  etag: "e1",
  updateTime: timestampFromDate(TIME),
  updatedBy: "ada",
};

type Context = Parameters<typeof serve>[0];

/** A mesh whose session waits for its budget, with the requests that it gets. */
async function waiting(
  t: Context,
  usage: MessageInitShape<typeof GetSessionUsageResponseSchema> = {},
): Promise<{ mesh: Mesh; spawns: SpawnSessionRequest[]; changes: UpdateBudgetRequest[] }> {
  const spawns: SpawnSessionRequest[] = [];
  const changes: UpdateBudgetRequest[] = [];
  const latestRun = {
    runId: "run_1",
    state: RunState.WAITING_BUDGET,
    budgetSessionId: PARENT,
    usage: { costMicros: 1n, priceVersion: "2026-11" },
  };
  const session = { sessionId: ID, budgetSessionIds: [PARENT, ID], latestRun };
  const url = await serve(t, (router) => {
    router.service(SessionService, {
      spawnSession: (request) => {
        spawns.push(request);
        return { session };
      },
      getSession: () => ({ session }),
      watchSession: async function* () {
        yield happened({ number: 1n, kind: SessionEventKind.BUDGET_CHANGED, detail: "by ada" });
      },
    });
    router.service(BudgetService, {
      getSessionUsage: () => usage,
      updateBudget: (request) => {
        changes.push(request);
        return { budget: OWN };
      },
    });
  });
  return { mesh: meshAt(url, new FakeClock()), spawns, changes };
}

test("a spawn sends the limits of its budget", async (t) => {
  const { mesh, spawns } = await waiting(t);
  const budget = { cost: 1.001, tokens: 200_000, calls: 40, runTimeMs: 600_000, waitMs: 0 };
  await mesh.spawn("Work.", { budget });
  await mesh.spawn("Work.", { budget: { cost: undefined, calls: 1 } });
  await mesh.spawn("Work.");
  const [first, second, third] = spawns.map((request) => request.budget);
  assert.ok(first?.maxRunTime && first.maxWait && second);
  assert.deepEqual(
    [first.maxCostMicros, first.maxTokenCount, first.maxModelCallCount],
    [1_001_000n, 200_000n, 40n],
  );
  assert.deepEqual([durationMs(first.maxRunTime), durationMs(first.maxWait)], [600_000, 0]);
  assert.deepEqual([second.maxCostMicros, second.maxModelCallCount, second.maxWait], [0n, 1n, undefined]);
  assert.equal(third, undefined);
});

test("a limit that would be none is refused before any call", async (t) => {
  const { mesh, spawns, changes } = await waiting(t);
  const session = await mesh.session(ID);
  const wrong: Budget[] = [
    { cost: 0 },
    { cost: -1 },
    { cost: 1e-7 },
    { cost: Number.NaN },
    { tokens: 0 },
    { calls: 1.5 },
    { runTimeMs: 0 },
    { waitMs: -1 },
    { waitMs: Number.POSITIVE_INFINITY },
  ];
  for (const budget of wrong) {
    await assert.rejects(mesh.spawn("Work.", { budget }), TypeError);
    await assert.rejects(session.setBudget(budget), TypeError);
  }
  await assert.rejects(session.setBudget({}), /name a limit that changes: cost, tokens, calls/);
  await assert.rejects(session.setBudget({ cost: undefined }), TypeError);
  assert.deepEqual([spawns, changes], [[], []]);
});

test("usage has the session, its family, and all budgets", async (t) => {
  const { mesh } = await waiting(t, {
    session: { usage: { outputTokenCount: 12n, costMicros: 250_000n }, sessionCount: 1n },
    family: { sessionCount: 3n, endedRunCount: 5n },
    isFamilyPartial: true,
    budgets: [{ sessionId: PARENT, budget: { maxTokenCount: 7n, maxWait: durationFromMs(0) } }, OWN],
  });
  const usage = await (await mesh.session(ID)).usage();
  assert.deepEqual([usage.session.outputTokens, usage.session.cost], [12, 0.25]);
  assert.deepEqual([usage.session.sessionCount, usage.session.endedRunCount], [1, 0]);
  assert.deepEqual([usage.family.sessionCount, usage.family.endedRunCount], [3, 5]);
  assert.equal(usage.isFamilyPartial, true);
  const none = { cost: undefined, tokens: undefined, calls: undefined, runTimeMs: undefined };
  assert.deepEqual(usage.budgets, [
    {
      sessionId: PARENT,
      budget: { ...none, tokens: 7, waitMs: 0 },
      usage: { cost: 0, tokens: 0, calls: 0, runTimeMs: 0 },
      reached: [],
      etag: "",
      updateTime: undefined,
      updatedBy: undefined,
    },
    {
      sessionId: ID,
      budget: { ...none, cost: 0.5, calls: 40, runTimeMs: 600_000, waitMs: undefined },
      usage: { cost: 0.52, tokens: 7, calls: 3, runTimeMs: 1500 },
      reached: ["COST"],
      etag: "e1",
      updateTime: TIME,
      updatedBy: "ada",
    },
  ]);
});

test("setBudget changes the named limits alone, and null removes one", async (t) => {
  const { mesh, changes } = await waiting(t);
  const session = await mesh.session(ID);
  const changed = await session.setBudget({ cost: 1, waitMs: null, tokens: undefined }, { etag: "e1" });
  const every: BudgetChange = { cost: null, tokens: 5, calls: null, runTimeMs: null, waitMs: 1000 };
  await session.setBudget(every);
  assert.deepEqual([changed.sessionId, changed.budget.cost], [ID, 0.5]);
  const [first, second] = changes;
  assert.ok(first?.budget && second?.budget);
  assert.deepEqual([first.sessionId, first.etag, second.etag], [ID, "e1", ""]);
  assert.deepEqual(first.updateMask?.paths, ["max_cost_micros", "max_wait"]);
  assert.deepEqual([first.budget.maxCostMicros, first.budget.maxWait], [1_000_000n, undefined]);
  const paths = ["max_cost_micros", "max_token_count", "max_model_call_count", "max_run_time", "max_wait"];
  assert.deepEqual(second.updateMask?.paths, paths);
  assert.deepEqual([second.budget.maxTokenCount, second.budget.maxCostMicros], [5n, 0n]);
});

test("a refusal of a change has its reason and its facts", async (t) => {
  const facts = { limit: "COST", used: "0.52", wanted: "0.10" };
  const url = await serve(t, (router) => {
    router.service(SessionService, { getSession: () => ({ session: { sessionId: ID } }) });
    router.service(BudgetService, {
      updateBudget: () => {
        throw refusal(Code.FailedPrecondition, "BUDGET_BELOW_USAGE", { facts });
      },
    });
  });
  const session = await meshAt(url, new FakeClock()).session(ID);
  await assert.rejects(session.setBudget({ cost: 0.1 }), {
    name: "FailedPrecondition",
    reason: "BUDGET_BELOW_USAGE",
    facts,
  });
});

test("a run that waits names the session of the budget, and what it has cost", async (t) => {
  const { mesh } = await waiting(t);
  const session = await mesh.session(ID);
  assert.deepEqual(session.view.budgetSessionIds, [PARENT, ID]);
  const run = session.latestRun;
  assert.deepEqual([run?.state, run?.budgetSessionId], ["WAITING_BUDGET", PARENT]);
  assert.deepEqual([run?.usage.cost, run?.usage.priceVersion], [0.000001, "2026-11"]);
  for await (const event of session.events()) {
    assert.deepEqual([event.type, event.detail], ["BUDGET_CHANGED", "by ada"]);
  }
});
