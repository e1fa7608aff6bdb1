import assert from "node:assert/strict";
import { test } from "node:test";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import type { LiveEvent } from "@spawnmesh/client";
import { Role } from "#dist/gen/spawnmesh/content/v1/message_pb.js";
import { RunState, SessionEventKind, SessionState } from "#dist/gen/spawnmesh/session/v1/session_pb.js";
import { SessionService } from "#dist/gen/spawnmesh/session/v1/session_service_pb.js";
import {
  LiveService,
  type WatchTranscriptResponseSchema,
} from "#dist/gen/spawnmesh/transcript/v1/live_service_pb.js";
import { TranscriptService } from "#dist/gen/spawnmesh/transcript/v1/transcript_service_pb.js";
import type { Session } from "#dist/session.js";
import { FakeClock, meshAt, refusal, serve } from "./server.js";

const ID = "ses_00000000000000000000000000";

type Context = Parameters<typeof serve>[0];
type Response = MessageInitShape<typeof WatchTranscriptResponseSchema>;
type Change = { cursor: bigint; kind: SessionEventKind; runState?: RunState; runId?: string };
type Shown = readonly unknown[];

/** A lock that is closed until `open`. */
class Gate {
  open: () => void = () => {};
  readonly passed = new Promise<void>((resolve) => {
    this.open = resolve;
  });
}

interface Script {
  state?: () => SessionState;
  head: () => bigint;
  events: (after: bigint) => AsyncGenerator<Change>;
  transcript: (cursor: string, signal: AbortSignal) => AsyncGenerator<Response>;
}

async function sessionOf(t: Context, script: Script): Promise<Session> {
  const url = await serve(t, (router) => {
    router.service(SessionService, {
      getSession: () => ({ session: { sessionId: ID, state: script.state?.() ?? SessionState.ACTIVE } }),
      watchSession: async function* ({ afterCursor }) {
        for await (const event of script.events(afterCursor)) yield { event };
      },
    });
    router.service(TranscriptService, { listEntries: () => ({ head: { seq: script.head() } }) });
    router.service(LiveService, {
      watchTranscript: ({ cursor }, { signal }) => script.transcript(cursor, signal),
    });
  });
  return meshAt(url, new FakeClock()).session(ID);
}

function run(cursor: bigint, runState: RunState, runId = "run_1"): Change {
  return { cursor, kind: SessionEventKind.RUN, runState, runId };
}

const closed = (cursor: bigint): Change => ({ cursor, kind: SessionEventKind.CLOSED });

function delta(cursor: string, text: string, beginsDraft = false): Response {
  const value = { runId: "run_1", model: "a/b", text, beginsDraft };
  return { cursor, readSeq: 1n, event: { case: "draftDelta", value } };
}

function answer(cursor: string, readSeq: bigint, text: string, completesDraft: boolean): Response {
  const content = [{ block: { case: "text", value: { text } } } as const];
  const kind = { case: "message", value: { role: Role.ASSISTANT, content } } as const;
  const value = { entry: { seq: readSeq, body: { kind } }, completesDraft };
  return { cursor, readSeq, event: { case: "entryAppended", value } };
}

function shown(event: LiveEvent): Shown {
  switch (event.type) {
    case "state":
      return ["state", event.event.runState ?? event.event.type];
    case "text":
      return ["text", event.text, event.beginsDraft];
    case "retracted":
      return ["retracted", event.runId];
    case "entry":
      return ["entry", event.entry.seq, event.completesDraft];
  }
}

async function all(events: AsyncIterable<LiveEvent>): Promise<LiveEvent[]> {
  const found: LiveEvent[] = [];
  for await (const event of events) found.push(event);
  return found;
}

async function ended(signal: AbortSignal): Promise<void> {
  await new Promise((resolve) => signal.addEventListener("abort", resolve));
}

test("the end of a run comes behind its entries, and one cursor continues both streams", async (t) => {
  const asked = new Gate();
  const afters: unknown[] = [];
  const session = await sessionOf(t, {
    head: () => {
      asked.open();
      return 2n;
    },
    events: async function* (after) {
      afters.push(after);
      if (after < 1n) yield run(1n, RunState.RUNNING);
      if (after < 2n) yield run(2n, RunState.SUCCEEDED);
      yield closed(3n);
    },
    transcript: async function* (cursor, signal) {
      afters.push(cursor);
      yield { cursor: cursor || "a", readSeq: cursor === "d" ? 2n : 1n };
      if (cursor === "d") return ended(signal);
      if (cursor === "") yield delta("b", "Good ", true);
      await asked.passed;
      yield delta("c", "day.");
      yield answer("d", 2n, "Good day.", true);
      await ended(signal);
    },
  });
  const events = await all(session.live());
  const both: Shown[] = [
    ["text", "day.", false],
    ["entry", 2, true],
    ["state", "SUCCEEDED"],
    ["state", "CLOSED"],
  ];
  assert.deepEqual(events.map(shown).slice(-4), both);
  const begun = events.map(shown).slice(0, -4).sort();
  assert.deepEqual(begun, [["state", "RUNNING"], ["text", "Good ", true]]);
  afters.length = 0;
  const resumed = await all(session.live({ after: events[1]!.cursor }));
  assert.deepEqual(resumed.map(shown), both);
  assert.deepEqual(afters.sort(), [1n, "b"]);
  assert.deepEqual((await all(session.live({ after: events[4]!.cursor }))).map(shown), [["state", "CLOSED"]]);
});

test("a broken stream is opened again behind its last response", async (t) => {
  const cursors: string[] = [];
  const session = await sessionOf(t, {
    head: () => 2n,
    events: async function* () {
      yield closed(1n);
    },
    transcript: async function* (cursor) {
      cursors.push(cursor);
      const number = cursors.length;
      yield { cursor: cursor || "a", readSeq: 1n };
      if (number === 4) yield answer("e", 2n, "1 2 3 ", true);
      else yield delta(`${number}`, `${number} `, number === 1);
      throw refusal(Code.Unavailable, "DRAINING");
    },
  });
  const events = await all(session.live());
  assert.deepEqual(events.map(shown), [
    ["text", "1 ", true],
    ["text", "2 ", false],
    ["text", "3 ", false],
    ["entry", 2, true],
    ["state", "CLOSED"],
  ]);
  assert.deepEqual(cursors, ["", "1", "2", "3"]);
});

test("text is retracted by the service, or by the end of a run whose runner was lost", async (t) => {
  const seen = new Gate();
  const killed = new Gate();
  const session = await sessionOf(t, {
    head: () => 1n,
    events: async function* () {
      await seen.passed;
      yield run(1n, RunState.KILLED);
      await killed.passed;
      yield closed(2n);
    },
    transcript: async function* (_cursor, signal) {
      yield { cursor: "a", readSeq: 1n };
      yield delta("b", "One", true);
      yield { cursor: "c", readSeq: 1n, event: { case: "draftRetracted", value: { runId: "run_1" } } };
      yield delta("d", "Two", true);
      await killed.passed;
      yield delta("e", " more");
      yield { cursor: "f", readSeq: 1n, event: { case: "draftRetracted", value: { runId: "run_1" } } };
      await ended(signal);
    },
  });
  const events: Shown[] = [];
  for await (const event of session.live()) {
    events.push(shown(event));
    if (event.type === "text" && event.text === "Two") seen.open();
    if (event.type === "state" && event.event.runState === "KILLED") killed.open();
  }
  assert.deepEqual(events, [
    ["text", "One", true],
    ["retracted", "run_1"],
    ["text", "Two", true],
    ["retracted", "run_1"],
    ["state", "KILLED"],
    ["state", "CLOSED"],
  ]);
});

test("a transcript that is not there yet is waited for, and a session that never had one ends", async (t) => {
  let count = 0;
  const failed = new Gate();
  const session = await sessionOf(t, {
    state: () => (count < 3 ? SessionState.PROVISIONING : SessionState.SPAWN_FAILED),
    head: () => {
      throw refusal(Code.NotFound, "NOT_FOUND");
    },
    events: async function* () {
      await failed.passed;
      yield { cursor: 1n, kind: SessionEventKind.SPAWN_FAILED };
    },
    transcript: async function* () {
      if (++count === 3) failed.open();
      throw refusal(Code.NotFound, "NOT_FOUND");
    },
  });
  assert.deepEqual((await all(session.live())).map(shown), [["state", "SPAWN_FAILED"]]);
});

test("a deleted transcript and a cursor of elsewhere are errors", async (t) => {
  const session = await sessionOf(t, {
    head: () => 1n,
    events: async function* () {
      yield run(1n, RunState.RUNNING);
      await new Promise(() => {});
    },
    transcript: async function* () {
      yield { cursor: "a", readSeq: 1n };
      throw refusal(Code.NotFound, "NOT_FOUND");
    },
  });
  await assert.rejects(all(session.live()), { name: "NotFound" });
  await assert.rejects(all(session.live({ after: "4" })), { name: "TypeError" });
});

test("both streams are cancelled when the loop is left, or by the signal", async (t) => {
  const ends: Promise<void>[] = [];
  const session = await sessionOf(t, {
    head: () => 1n,
    events: async function* () {
      yield run(1n, RunState.RUNNING);
      await Promise.all(ends);
    },
    transcript: async function* (_cursor, signal) {
      ends.push(ended(signal));
      yield { cursor: "a", readSeq: 1n };
      await ends.at(-1);
    },
  });
  for await (const event of session.live()) {
    assert.deepEqual(shown(event), ["state", "RUNNING"]);
    break;
  }
  await Promise.all(ends);
  const controller = new AbortController();
  const live = session.live({ signal: controller.signal });
  await live.next();
  controller.abort(new Error("enough"));
  await assert.rejects(live.next(), { message: "enough" });
});
