import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { type RunFailed, type SessionEvent, type SessionView as View } from "@spawnmesh/client";
import { Reason } from "#dist/gen/spawnmesh/errors/v1/reason_pb.js";
import { Role } from "#dist/gen/spawnmesh/content/v1/message_pb.js";
import {
  ReceiptWarning,
  RunState,
  SessionEventKind,
  type SessionSchema,
  SessionState,
  SessionView,
} from "#dist/gen/spawnmesh/session/v1/session_pb.js";
import {
  type InterruptRunRequest,
  SessionService,
} from "#dist/gen/spawnmesh/session/v1/session_service_pb.js";
import { TenantService } from "#dist/gen/spawnmesh/session/v1/tenant_service_pb.js";
import { TranscriptService } from "#dist/gen/spawnmesh/transcript/v1/transcript_service_pb.js";
import type { Session } from "#dist/session.js";
import { FakeClock, happened, meshAt, refusal, serve, watched } from "./server.js";

const ID = "ses_00000000000000000000000000";
const TIME = new Date("2026-01-02T03:04:05.678Z");

type Wire = MessageInitShape<typeof SessionSchema>;
type Context = Parameters<typeof serve>[0];

async function sessionOf(t: Context, wire: Wire): Promise<Session> {
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      getSession: () => ({ session: { sessionId: ID, ...wire } }),
      waitSession: () => ({ session: { sessionId: ID, ...wire }, done: true }),
    }),
  );
  return meshAt(url, new FakeClock()).session(ID);
}

test("a session has strings, dates, numbers, and undefined for what is absent", async (t) => {
  const session = await sessionOf(t, {
    state: SessionState.ACTIVE,
    createTime: timestampFromDate(TIME),
    label: "",
    metadata: { ticket: "17" },
    agentVersion: 3n,
    depth: 2,
    latestRun: {
      runId: "run_1",
      state: RunState.RUNNING,
      usage: { inputTokenCount: 12n, outputTokenCount: 3n },
    },
    receipt: {
      totalBytes: 5n,
      files: [{ name: "a", sizeBytes: 5n, sha256: "ff" }],
      warnings: [ReceiptWarning.MOUNT_PATH_IGNORED],
    },
  });
  const view: View = session.view;
  assert.equal(session.state, "ACTIVE");
  assert.deepEqual(view.createTime, TIME);
  assert.equal(view.endTime, undefined);
  assert.equal(view.label, undefined);
  assert.deepEqual([view.metadata, view.agentVersion], [{ ticket: "17" }, 3]);
  assert.equal(view.thinking, undefined);
  assert.equal(view.depth, 2);
  assert.equal(session.latestRun?.state, "RUNNING");
  assert.equal(session.latestRun?.resultText, undefined);
  assert.deepEqual(session.latestRun?.usage, {
    cost: 0,
    priceVersion: undefined,
    inputTokens: 12,
    outputTokens: 3,
    cacheReadTokens: 0,
    cacheWriteTokens: 0,
  });
  assert.equal(view.receipt?.totalBytes, 5);
  assert.deepEqual(view.receipt?.warnings, ["MOUNT_PATH_IGNORED"]);
  assert.deepEqual(view.receipt?.files, [{ name: "a", sizeBytes: 5, sha256: "ff", mimeType: undefined }]);
});

test("a session that was forked names the entry, and another one names none", async (t) => {
  const forked = await sessionOf(t, { fork: { sessionId: "ses_parent", seq: 12n } });
  assert.deepEqual(forked.view.fork, { sessionId: "ses_parent", seq: 12 });
  assert.equal((await sessionOf(t, {})).view.fork, undefined);
});

test("a state or a reason of a newer mesh is its number", async (t) => {
  assert.equal((await sessionOf(t, { state: 77 as SessionState })).state, "77");
  const latestRun = { runId: "run_1", state: RunState.FAILED, errorReason: 9999 as Reason };
  assert.equal((await sessionOf(t, { latestRun })).latestRun?.errorReason, "9999");
});

test("the result is the text of the run", async (t) => {
  const latestRun = { runId: "run_1", state: RunState.SUCCEEDED, resultText: "Hello." };
  const result = await (await sessionOf(t, { traceId: "abc", latestRun })).result();
  assert.deepEqual([result.text, result.traceId, result.run.runId], ["Hello.", "abc", "run_1"]);
});

const FAILURES = [
  [RunState.FAILED, "FAILED", "UNKNOWN_MODEL", "no such model"],
  [RunState.TIMED_OUT, "TIMED_OUT", "TIMED_OUT", "the run ended as TIMED_OUT"],
  [RunState.KILLED, "KILLED", "KILLED", "the run ended as KILLED"],
  [RunState.INTERRUPTED, "INTERRUPTED", "INTERRUPTED", "the run ended as INTERRUPTED"],
] as const;

for (const [state, name, reason, message] of FAILURES) {
  test(`a run that is ${name} throws RunFailed`, async (t) => {
    const failure = { errorReason: Reason.UNKNOWN_MODEL, errorMessage: message };
    const given = state === RunState.FAILED ? failure : {};
    const session = await sessionOf(t, { traceId: "abc", latestRun: { runId: "run_1", state, ...given } });
    const expected: Partial<RunFailed> = {
      ...{ name: "RunFailed", state: name, reason, message },
      ...{ sessionId: ID, runId: "run_1", traceId: "abc" },
    };
    await assert.rejects(session.result(), expected);
  });
}

test("a session that was not spawned throws RunFailed", async (t) => {
  const { SPAWN_FAILED: state } = SessionState;
  const session = await sessionOf(t, { state, failureReason: Reason.SPAWN_REFUSED });
  const expected = { name: "RunFailed", state: "SPAWN_FAILED", reason: "SPAWN_REFUSED", runId: undefined };
  await assert.rejects(session.result(), expected);
});

test("an interrupt ends the run, or sends it a message that is repeated with the same id", async (t) => {
  const requests: InterruptRunRequest[] = [];
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      getSession: () => ({ session: { sessionId: ID } }),
      interruptRun: (request) => {
        requests.push(request);
        if (requests.length === 1) return {};
        if (requests.length === 3) throw refusal(Code.Unavailable, "DRAINING");
        const interruptTime = timestampFromDate(TIME);
        return { run: { runId: "run_1", state: RunState.RUNNING, interruptTime } };
      },
    }),
  );
  const session = await meshAt(url, new FakeClock()).session(ID);
  assert.equal(await session.interrupt(), undefined);
  const run = await session.interrupt({ runId: "run_1", requestId: "unused" });
  assert.deepEqual([run?.state, run?.interruptTime], ["RUNNING", TIME]);
  await session.interrupt({ text: "In French." });
  await session.interrupt({ text: "In French.", requestId: "mine" });
  const [first, second, third, repeated, given] = requests.map((one) => [one.runId, one.text, one.requestId]);
  assert.deepEqual([first, second], [["", "", ""], ["run_1", "", ""]]);
  assert.deepEqual(third, repeated);
  assert.deepEqual([third?.[1], given], ["In French.", ["", "In French.", "mine"]]);
  assert.match(third?.[2] ?? "", /./);
  assert(requests.every(({ sessionId }) => sessionId === ID));
});

test("an interrupt is cancelled with the reason of its signal", async (t) => {
  const session = await sessionOf(t, {});
  const signal = AbortSignal.abort(new Error("enough"));
  await assert.rejects(session.interrupt({ signal }), { message: "enough" });
});

test("a wait is made of calls that survive an outage, and ends in time", async (t) => {
  const clock = new FakeClock();
  const waits: number[] = [];
  let count = 0;
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      getSession: () => ({ session: { sessionId: ID } }),
      waitSession: ({ timeout }) => {
        if (++count % 7 !== 0) throw refusal(Code.Unavailable, "DRAINING");
        const ms = Number(timeout?.seconds) * 1000 + (timeout?.nanos ?? 0) / 1e6;
        waits.push(ms);
        clock.pass(ms);
        return { session: { sessionId: ID }, done: false };
      },
    }),
  );
  const session = await meshAt(url, clock).session(ID);
  const expected = { name: "ResultTimeout", timeoutMs: 150_000, sessionId: ID };
  await assert.rejects(session.result({ timeoutMs: 150_000 }), expected);
  assert.equal(waits.length, 3);
  assert.deepEqual(waits.slice(0, 2), [60_000, 60_000]);
  assert(clock.now() >= 150_000, `it waited ${clock.now()} ms`);
});

async function all(events: AsyncIterable<SessionEvent>): Promise<SessionEvent[]> {
  const found: SessionEvent[] = [];
  for await (const event of events) found.push(event);
  return found;
}

test("a watch resumes behind its last event after a broken stream", async (t) => {
  const asked: unknown[] = [];
  const session = await watched(t, ID, async function* ({ afterEvent, cursor, withTranscript }) {
    asked.push([afterEvent, cursor, withTranscript]);
    const last = cursor === "" ? afterEvent : BigInt(cursor.slice(1));
    yield happened({ number: last + 1n, kind: SessionEventKind.RUN });
    if (last < 6n) throw refusal(Code.Unavailable, "DRAINING");
    yield happened({ number: last + 2n, kind: SessionEventKind.CLOSED });
  });
  const events = await all(session.events({ after: 4 }));
  assert.deepEqual(
    events.map(({ number, type }) => [number, type]),
    [
      [5, "RUN"],
      [6, "RUN"],
      [7, "RUN"],
      [8, "CLOSED"],
    ],
  );
  assert.deepEqual(asked, [
    [4n, "", false],
    [0n, "c5", false],
    [0n, "c6", false],
  ]);
});

test("a watch of a deleted session ends with its refusal", async (t) => {
  const session = await watched(t, ID, async function* () {
    yield happened({ number: 1n, kind: SessionEventKind.RUN });
    throw refusal(Code.NotFound, "NOT_FOUND");
  });
  await assert.rejects(all(session.events()), { name: "NotFound", reason: "NOT_FOUND" });
});

test("the stream is cancelled when its loop is left", async (t) => {
  const ends: Promise<unknown>[] = [];
  const session = await watched(t, ID, async function* (_request, signal) {
    ends.push(once(signal, "abort"));
    yield happened({ number: 1n });
    await ends[0];
  });
  for await (const event of session.events()) {
    assert.equal(event.number, 1);
    break;
  }
  await Promise.all(ends);
});

test("sessions and agents are fetched page by page", async (t) => {
  const tokens: string[] = [];
  const page = (token: string): string => {
    tokens.push(token);
    return { "": "2", 2: "3", 3: "" }[token] ?? "";
  };
  const url = await serve(t, (router) => {
    router.service(SessionService, {
      // The second page is empty, and another one follows.
      listSessions: ({ pageToken, filter, orderBy, view }) => {
        assert.deepEqual([filter, orderBy, view], ["state = ACTIVE", "create_time", SessionView.FULL]);
        const sessions = pageToken === "2" ? [] : [{ sessionId: `ses_${pageToken}` }];
        return { sessions, nextPageToken: page(pageToken) };
      },
    });
    router.service(TenantService, {
      listAgents: ({ pageToken }) => ({
        agents: [{ agentId: `agent-${pageToken}`, thinking: 4, version: 2n, etag: "e" }],
        nextPageToken: page(pageToken),
      }),
    });
  });
  const mesh = meshAt(url, new FakeClock());
  const ids: string[] = [];
  const options = { filter: "state = ACTIVE", orderBy: "create_time", isFull: true } as const;
  for await (const session of mesh.sessions(options)) ids.push(session.id);
  for await (const agent of mesh.agents.list()) {
    ids.push([agent.agentId, agent.thinking, agent.version, agent.etag].join(" "));
  }
  assert.deepEqual(ids, ["ses_", "ses_3", "agent- MEDIUM 2 e", "agent-2 MEDIUM 2 e", "agent-3 MEDIUM 2 e"]);
  assert.deepEqual(tokens, ["", "2", "3", "", "2", "3"]);
});

test("entries of a transcript are plain values, page by page", async (t) => {
  const url = await serve(t, (router) => {
    router.service(SessionService, { getSession: () => ({ session: { sessionId: ID } }) });
    router.service(TranscriptService, {
      listEntries: ({ direction, pageToken }) => {
        assert.deepEqual([direction.case, direction.value], ["afterSeq", 3n]);
        if (pageToken === "") {
          const kind = { case: "header", value: { sessionId: ID } } as const;
          return { entries: [{ seq: 4n, body: { kind } }], nextPageToken: "second" };
        }
        assert.equal(pageToken, "second");
        const content = [
          { block: { case: "text", value: { text: "Good " } } },
          { block: { case: "image", value: { mimeType: "image/png", data: new Uint8Array([1]) } } },
          { block: { case: "text", value: { text: "day." } } },
        ] as const;
        const value = { role: Role.ASSISTANT, content: [...content], model: "a/b" };
        const kind = { case: "message", value } as const;
        return { entries: [{ seq: 5n, createTime: timestampFromDate(TIME), body: { kind } }] };
      },
    });
  });
  const session = await meshAt(url, new FakeClock()).session(ID);
  const seen: unknown[] = [];
  for await (const { seq, createTime, body } of session.transcript({ afterSeq: 3 })) {
    if (body.type === "message") seen.push([seq, createTime, body.role, body.text, body.model]);
    else seen.push([seq, body.type]);
  }
  assert.deepEqual(seen, [
    [4, "header"],
    [5, TIME, "ASSISTANT", "Good day.", "a/b"],
  ]);
});
