import assert from "node:assert/strict";
import { test } from "node:test";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, durationMs, timestampDate, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code, type ServiceImpl } from "@connectrpc/connect";
import type { OverlapPolicy, Schedule, ScheduleFiring, Schedules } from "@spawnmesh/client";
import { ThinkingLevel } from "#dist/gen/spawnmesh/content/v1/thinking_pb.js";
import {
  CatchUpPolicy,
  FiringOutcome,
  OverlapPolicy as WireOverlap,
  type ScheduleFiringSchema,
  type ScheduleSchema,
} from "#dist/gen/spawnmesh/session/v1/schedule_pb.js";
import {
  type ListScheduleFiringsRequest,
  type RunScheduleRequest,
  ScheduleService,
  type UpdateScheduleRequest,
} from "#dist/gen/spawnmesh/session/v1/schedule_service_pb.js";
import { Cleanup, Runtime, SessionMode } from "#dist/gen/spawnmesh/session/v1/session_pb.js";
import { FakeClock, meshAt, refusal, serve } from "./server.js";

const CRON = "0 9 * * 1-5";
const TIME = new Date("2026-01-05T08:00:00Z");
const SPAWNED: MessageInitShape<typeof ScheduleFiringSchema> = {
  firingId: "fir_1",
  dueTime: timestampFromDate(TIME),
  outcome: FiringOutcome.SPAWNED,
  sessionId: "ses_1",
  isManual: true,
};
const WIRE: MessageInitShape<typeof ScheduleSchema> = {
  name: "a",
  cron: CRON,
  timeZone: "Europe/Berlin",
  spawn: {
    task: "Sum up.",
    label: "daily",
    mode: SessionMode.SESSION,
    runTimeout: durationFromMs(60_000),
    metadata: { team: "ops" },
    references: [{ setId: "att_1", name: "a.md" }],
    budget: { maxTokenCount: 9n },
  },
  overlap: WireOverlap.SKIP,
  catchUp: CatchUpPolicy.NONE,
  upcomingTimes: [timestampFromDate(TIME)],
  lastFiring: SPAWNED,
  createTime: timestampFromDate(TIME),
  etag: "e1",
};

type Context = Parameters<typeof serve>[0];
type Implementation = Partial<ServiceImpl<typeof ScheduleService>>;

async function schedulesOf(t: Context, implementation: Implementation): Promise<Schedules> {
  const url = await serve(t, (router) => router.service(ScheduleService, implementation));
  return meshAt(url, new FakeClock()).schedules;
}

async function collected<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

/** The schedules of a mesh that notes what is written, and refuses so many writes first. */
async function writing(t: Context, options: { refusals?: number; reason?: string } = {}) {
  const requests: UpdateScheduleRequest[] = [];
  const { reason = "ETAG_DIFFERS" } = options;
  let { refusals = 0 } = options;
  let reads = 0;
  const schedules = await schedulesOf(t, {
    getSchedule: () => {
      reads += 1;
      return { schedule: WIRE };
    },
    updateSchedule: (request: UpdateScheduleRequest) => {
      requests.push(request);
      if (refusals-- > 0) throw refusal(Code.Aborted, reason, {});
      return { schedule: WIRE };
    },
  });
  return { schedules, requests, reads: () => reads };
}

test("put replaces all of a schedule", async (t) => {
  const { schedules, requests, reads } = await writing(t);
  const schedule = await schedules.put(
    "a",
    {
      cron: CRON,
      timeZone: "Europe/Berlin",
      task: "Sum up.",
      agentId: "clerk",
      label: "daily",
      model: "m",
      mode: "SESSION",
      cleanup: "KEEP",
      runtime: "EXTERNAL",
      runTimeoutMs: 2500,
      thinking: "LOW",
      metadata: { team: "ops" },
      references: [{ setId: "att_1", name: "a.md", newName: "b.md" }],
      budget: { cost: 0.5 },
      overlap: "REPLACE",
      catchUp: "LATEST",
    },
    { etag: "e1" },
  );
  await schedules.put("a", { cron: CRON, task: "Sum up." });
  const expected: Schedule = {
    name: "a",
    cron: CRON,
    timeZone: "Europe/Berlin",
    spawn: {
      task: "Sum up.",
      label: "daily",
      agentId: undefined,
      model: undefined,
      mode: "SESSION",
      cleanup: undefined,
      runtime: undefined,
      runTimeoutMs: 60_000,
      thinking: undefined,
      metadata: { team: "ops" },
      references: [{ setId: "att_1", name: "a.md" }],
      budget: { cost: undefined, tokens: 9, calls: undefined, runTimeMs: undefined, waitMs: undefined },
    },
    overlap: "SKIP",
    catchUp: "NONE",
    paused: false,
    upcomingTimes: [TIME],
    lastFiring: {
      firingId: "fir_1",
      dueTime: TIME,
      fireTime: undefined,
      outcome: "SPAWNED",
      sessionId: "ses_1",
      errorReason: undefined,
      errorMessage: undefined,
      isManual: true,
    },
    createTime: TIME,
    updatedBy: undefined,
    etag: "e1",
  };
  assert.deepEqual(schedule, expected);
  const [first, second] = requests.map((one) => one.schedule);
  assert.ok(first?.spawn?.runTimeout && second?.spawn);
  assert.deepEqual([first.cron, first.timeZone, first.etag], [CRON, "Europe/Berlin", "e1"]);
  assert.deepEqual([first.overlap, first.catchUp], [WireOverlap.REPLACE, CatchUpPolicy.LATEST]);
  const { spawn } = first;
  assert.deepEqual(
    [spawn.task, spawn.agentId, spawn.label, spawn.model, spawn.metadata],
    ["Sum up.", "clerk", "daily", "m", { team: "ops" }],
  );
  assert.deepEqual([spawn.mode, spawn.cleanup], [SessionMode.SESSION, Cleanup.KEEP]);
  assert.deepEqual([spawn.runtime, spawn.thinking], [Runtime.EXTERNAL, ThinkingLevel.LOW]);
  assert.equal(durationMs(first.spawn.runTimeout), 2500);
  assert.equal(spawn.budget?.maxCostMicros, 500_000n);
  const [reference] = spawn.references;
  assert.deepEqual([reference?.setId, reference?.name, reference?.newName], ["att_1", "a.md", "b.md"]);
  assert.deepEqual([second.timeZone, second.overlap, second.etag], ["", WireOverlap.UNSPECIFIED, ""]);
  assert.deepEqual([second.spawn.runTimeout, second.spawn.budget], [undefined, undefined]);
  for (const one of requests) assert.deepEqual([one.updateMask?.paths, one.allowMissing], [["*"], true]);
  assert.equal(reads(), 0);
});

test("update changes what is given alone", async (t) => {
  const { schedules, requests, reads } = await writing(t);
  await schedules.update("a", { cron: "0 8 * * *" }, { etag: "e1" });
  await schedules.update("a", { timeZone: null, overlap: "ALLOW", catchUp: "ALL" });
  assert.deepEqual(
    requests.map((one) => one.updateMask?.paths),
    [["cron"], ["time_zone", "overlap", "catch_up"]],
  );
  const [first, second] = requests.map((one) => one.schedule);
  assert.deepEqual([first?.cron, first?.etag, first?.spawn], ["0 8 * * *", "e1", undefined]);
  assert.deepEqual(
    [second?.timeZone, second?.overlap, second?.catchUp],
    ["", WireOverlap.ALLOW, CatchUpPolicy.ALL],
  );
  assert.equal(requests[0]?.allowMissing, false);
  assert.equal(reads(), 0);
  const said = /name a field that changes: cron, timeZone, overlap, catchUp, task, label/;
  await assert.rejects(schedules.update("a", {}), said);
  await assert.rejects(schedules.update("a", { label: undefined }), TypeError);
});

test("an update of the spawn keeps the rest of it", async (t) => {
  const { schedules, requests } = await writing(t);
  await schedules.update("a", { cron: "0 8 * * *", task: "Other.", metadata: { n: "1" }, budget: null });
  await schedules.update("a", { references: null, runTimeoutMs: null, mode: null, budget: { calls: 4 } });
  const [first, second] = requests;
  assert.ok(first?.schedule?.spawn?.runTimeout && second?.schedule?.spawn);
  assert.deepEqual([first.updateMask?.paths, first.schedule.etag], [["cron", "spawn"], "e1"]);
  const { spawn } = first.schedule;
  assert.deepEqual(
    [spawn.task, spawn.label, spawn.metadata, spawn.budget],
    ["Other.", "daily", { n: "1" }, undefined],
  );
  assert.deepEqual([durationMs(first.schedule.spawn.runTimeout), spawn.references.length], [60_000, 1]);
  assert.deepEqual(second.updateMask?.paths, ["spawn"]);
  const other = second.schedule.spawn;
  assert.deepEqual(
    [other.task, other.references, other.runTimeout, other.mode],
    ["Sum up.", [], undefined, SessionMode.UNSPECIFIED],
  );
  assert.deepEqual([other.budget?.maxModelCallCount, other.budget?.maxTokenCount], [4n, 0n]);
});

test("an update reads the spawn again if the schedule has changed", async (t) => {
  const changed = await writing(t, { refusals: 2 });
  await changed.schedules.update("a", { label: "new" });
  assert.deepEqual([changed.reads(), changed.requests.length], [3, 3]);
  const based = await writing(t, { refusals: 1 });
  const expected = { name: "Aborted", reason: "ETAG_DIFFERS" };
  await assert.rejects(based.schedules.update("a", { label: "new" }, { etag: "e0" }), expected);
  assert.deepEqual([based.reads(), based.requests.map((one) => one.schedule?.etag)], [1, ["e0"]]);
  const contended = await writing(t, { refusals: 9 });
  await assert.rejects(contended.schedules.update("a", { label: "new" }), expected);
  assert.equal(contended.reads(), 5);
  const other = await writing(t, { refusals: 1, reason: "INVALID_REQUEST" });
  await assert.rejects(other.schedules.update("a", { label: "new" }), { reason: "INVALID_REQUEST" });
  assert.equal(other.reads(), 1);
});

test("an unknown word is refused with the known ones, before any call", async (t) => {
  const { schedules, requests, reads } = await writing(t);
  const overlap = "QUEUE" as OverlapPolicy;
  const known = /none of SKIP, ALLOW, REPLACE/;
  await assert.rejects(schedules.put("a", { cron: CRON, task: "x", overlap }), known);
  await assert.rejects(schedules.update("a", { overlap, task: "x" }), TypeError);
  await assert.rejects(schedules.update("a", { budget: { cost: 0 } }), TypeError);
  assert.deepEqual([requests, reads()], [[], 0]);
});

test("schedules are listed, read, paused, resumed and deleted", async (t) => {
  const paused = { ...WIRE, paused: true, upcomingTimes: [] };
  const deleted: string[] = [];
  const schedules = await schedulesOf(t, {
    listSchedules: ({ pageToken }: { pageToken: string }) =>
      pageToken === "" ? { schedules: [WIRE], nextPageToken: "1" } : { schedules: [{ ...WIRE, name: "b" }] },
    getSchedule: () => ({ schedule: paused }),
    pauseSchedule: () => ({ schedule: paused }),
    resumeSchedule: () => ({ schedule: WIRE }),
    deleteSchedule: ({ name, etag }: { name: string; etag: string }) => {
      deleted.push(`${name} ${etag}`);
      return {};
    },
  });
  assert.deepEqual(
    (await collected(schedules.list())).map((one) => one.name),
    ["a", "b"],
  );
  const found = await schedules.get("a");
  assert.deepEqual([found.paused, found.upcomingTimes], [true, []]);
  assert.equal((await schedules.pause("a")).paused, true);
  assert.equal((await schedules.resume("a")).paused, false);
  await schedules.delete("a");
  await schedules.delete("a", { etag: "e1" });
  assert.deepEqual(deleted, ["a ", "a e1"]);
});

test("a run has a request id and returns the firing", async (t) => {
  const requests: RunScheduleRequest[] = [];
  const schedules = await schedulesOf(t, {
    runSchedule: (request: RunScheduleRequest) => {
      requests.push(request);
      return { firing: SPAWNED };
    },
  });
  const firing = await schedules.run("a", { requestId: "r1" });
  await schedules.run("a");
  assert.deepEqual([firing.sessionId, firing.outcome, firing.isManual], ["ses_1", "SPAWNED", true]);
  assert.deepEqual([requests[0]?.name, requests[0]?.requestId], ["a", "r1"]);
  assert.equal(requests[1]?.requestId.length, 32);
});

test("firings are read page by page, with the conditions of the first one", async (t) => {
  const requests: ListScheduleFiringsRequest[] = [];
  const failed = { ...SPAWNED, outcome: FiringOutcome.FAILED, sessionId: "", isManual: false };
  const schedules = await schedulesOf(t, {
    listScheduleFirings: (request: ListScheduleFiringsRequest) => {
      requests.push(request);
      if (request.pageToken === "") return { nextPageToken: "1" };
      return { firings: [{ ...failed, errorReason: "RUN_QUEUE_FULL", errorMessage: "full" }] };
    },
  });
  const found = await collected(schedules.firings("a", { outcome: "FAILED", since: TIME, before: TIME }));
  const expected: ScheduleFiring = {
    firingId: "fir_1",
    dueTime: TIME,
    fireTime: undefined,
    outcome: "FAILED",
    sessionId: undefined,
    errorReason: "RUN_QUEUE_FULL",
    errorMessage: "full",
    isManual: false,
  };
  assert.deepEqual(found, [expected]);
  for (const { name, outcome, startTime, endTime } of requests) {
    assert.ok(startTime && endTime);
    assert.deepEqual([timestampDate(startTime), timestampDate(endTime)], [TIME, TIME]);
    assert.deepEqual([name, outcome], ["a", FiringOutcome.FAILED]);
  }
  assert.equal(requests.length, 2);
});

test("a refusal has its reason", async (t) => {
  const schedules = await schedulesOf(t, {
    updateSchedule: () => {
      throw refusal(Code.InvalidArgument, "INVALID_REQUEST", {});
    },
  });
  const expected = { name: "InvalidArgument", reason: "INVALID_REQUEST" };
  await assert.rejects(schedules.put("a", { cron: "0 0 30 2 *", task: "x" }), expected);
});
