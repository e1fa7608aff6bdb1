import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { WireType } from "@bufbuild/protobuf/wire";
import { Code } from "@connectrpc/connect";
import type { LiveEvent } from "@spawnmesh/client";
import { Role } from "#dist/gen/spawnmesh/content/v1/message_pb.js";
import { RunState, SessionEventKind } from "#dist/gen/spawnmesh/session/v1/session_pb.js";
import { WatchSessionResponseSchema } from "#dist/gen/spawnmesh/session/v1/session_service_pb.js";
import type { DraftDeltaSchema } from "#dist/gen/spawnmesh/transcript/v1/live_event_pb.js";
import { happened, refusal, type Watched, watched } from "./server.js";

const ID = "ses_00000000000000000000000000";
const CHILD = "ses_00000000000000000000000001";

const closed = (number: bigint, sessionId = ID): Watched =>
  happened({ number, kind: SessionEventKind.CLOSED }, sessionId);

function delta(cursor: string, text: string, beginsDraft = false, model = "a/b"): Watched {
  return grown(cursor, { case: "text", value: text }, beginsDraft, model);
}

function grown(
  cursor: string,
  part: NonNullable<MessageInitShape<typeof DraftDeltaSchema>["delta"]>,
  beginsDraft: boolean,
  model = "a/b",
): Watched {
  const value = { runId: "run_1", model, delta: part, beginsDraft };
  return { cursor, sessionId: ID, event: { case: "draftDelta", value } };
}

function retracted(cursor: string): Watched {
  return { cursor, sessionId: ID, event: { case: "draftRetracted", value: { runId: "run_1" } } };
}

function answer(cursor: string, seq: bigint, text: string, completesDraft: boolean): Watched {
  const content = [{ block: { case: "text", value: { text } } } as const];
  const kind = { case: "message", value: { role: Role.ASSISTANT, content } } as const;
  const value = { entry: { seq, body: { kind } }, completesDraft };
  return { cursor, sessionId: ID, event: { case: "entryAppended", value } };
}

/** A response of a kind that this client does not know, in the field 99. */
function ofNewerService(cursor: string): Watched {
  const response = create(WatchSessionResponseSchema, { cursor, sessionId: ID });
  response.$unknown = [{ no: 99, wireType: WireType.Varint, data: new Uint8Array([1]) }];
  return response;
}

function shown(event: LiveEvent): readonly unknown[] {
  switch (event.type) {
    case "state":
      return [event.cursor, "state", event.event.runState ?? event.event.type];
    case "text":
      return [event.cursor, "text", event.text, event.beginsDraft, event.runId, event.model];
    case "thinking":
      return [event.cursor, "thinking", event.thinking, event.beginsDraft, event.runId, event.model];
    case "toolCall":
      return [event.cursor, event.toolCallId, event.name, event.arguments, event.beginsCall];
    case "retracted":
      return [event.cursor, "retracted", event.runId];
    case "entry":
      return [event.cursor, "entry", event.entry.seq, event.completesDraft];
  }
}

async function all<T>(events: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const event of events) found.push(event);
  return found;
}

test("events of every kind are plain values, until the stream ends", async (t) => {
  const asked: unknown[] = [];
  const session = await watched(t, ID, async function* ({ sessionId, cursor, ...choices }) {
    asked.push([sessionId, cursor, choices.withTranscript, choices.withDescendants]);
    yield happened({ number: 1n, kind: SessionEventKind.RUN, runState: RunState.RUNNING }, ID);
    yield delta("d1", "Good ", true);
    yield retracted("d2");
    yield grown("t1", { case: "thinking", value: "Hm." }, true);
    yield delta("d3", "Good ");
    yield delta("d4", "day.", false, "");
    const call = { toolCallId: "call_1", name: "read_file", arguments: "{}", beginsCall: true };
    yield grown("t2", { case: "toolCall", value: call }, false);
    yield grown("t3", { case: undefined }, false);
    yield answer("d5", 2n, "Good day.", true);
    yield answer("d6", 3n, "It is late.", false);
    yield closed(2n);
  });
  const events = await all(session.live());
  assert.deepEqual(asked, [[ID, "", true, false]]);
  assert.deepEqual(events.map(shown), [
    ["c1", "state", "RUNNING"],
    ["d1", "text", "Good ", true, "run_1", "a/b"],
    ["d2", "retracted", "run_1"],
    ["t1", "thinking", "Hm.", true, "run_1", "a/b"],
    ["d3", "text", "Good ", false, "run_1", "a/b"],
    ["d4", "text", "day.", false, "run_1", undefined],
    ["t2", "call_1", "read_file", "{}", true],
    ["d5", "entry", 2, true],
    ["d6", "entry", 3, false],
    ["c2", "state", "CLOSED"],
  ]);
  assert(events.every(({ sessionId }) => sessionId === ID));
  const { body } = (events[7] as LiveEvent & { type: "entry" }).entry;
  assert.equal(body.type === "message" && body.text, "Good day.");
});

test("descendants are watched if that is asked for, also after the stream broke", async (t) => {
  const asked: unknown[] = [];
  const session = await watched(t, ID, async function* ({ cursor, withTranscript, withDescendants }) {
    asked.push([cursor, withTranscript, withDescendants]);
    if (cursor === "") {
      const kind = SessionEventKind.CHILD_SPAWNED;
      yield happened({ number: 1n, kind, childSessionId: CHILD, detail: "reader" }, ID);
      throw refusal(Code.Unavailable, "DRAINING");
    }
    yield closed(2n, CHILD);
    yield closed(3n);
  });
  const events = await all(session.live({ withDescendants: true }));
  assert.deepEqual(asked, [["", true, true], ["c1", true, true]]);
  assert.deepEqual(
    events.map((event) => event.type === "state" && [event.sessionId, event.event.type]),
    [[ID, "CHILD_SPAWNED"], [CHILD, "CLOSED"], [ID, "CLOSED"]],
  );
  assert.equal(events[0]?.type === "state" && events[0].event.childSessionId, CHILD);
});

test("a broken stream goes on behind its last cursor, and a watch behind a given one", async (t) => {
  const cursors: string[] = [];
  const session = await watched(t, ID, async function* ({ cursor }) {
    cursors.push(cursor);
    if (cursors.length === 2) throw refusal(Code.Unavailable, "DRAINING");
    if (cursors.length === 4) return;
    yield delta(`${cursors.length}a`, "1 ", true);
    yield delta(`${cursors.length}b`, "2 ");
    throw refusal(Code.Unavailable, "DRAINING");
  });
  const events = await all(session.live({ after: "0" }));
  assert.deepEqual(cursors, ["0", "1b", "1b", "3b"]);
  assert.deepEqual(events.map(({ cursor }) => cursor), ["1a", "1b", "3a", "3b"]);
});

test("a kind of a newer service is skipped, and its cursor is kept", async (t) => {
  const cursors: string[] = [];
  const session = await watched(t, ID, async function* ({ cursor }) {
    cursors.push(cursor);
    if (cursor === "") {
      yield ofNewerService("n1");
      throw refusal(Code.Unavailable, "DRAINING");
    }
    yield closed(1n);
  });
  assert.deepEqual((await all(session.live())).map(shown), [["c1", "state", "CLOSED"]]);
  assert.deepEqual((await all(session.events())).map(({ number }) => number), [1]);
  assert.deepEqual(cursors, ["", "n1", "", "n1"]);
});

test("a deleted session and a cursor of elsewhere are errors", async (t) => {
  const session = await watched(t, ID, async function* ({ cursor }) {
    if (cursor !== "") throw refusal(Code.InvalidArgument, "INVALID_REQUEST");
    yield closed(1n);
    throw refusal(Code.NotFound, "NOT_FOUND");
  });
  await assert.rejects(all(session.live()), { name: "NotFound" });
  await assert.rejects(all(session.live({ after: "4" })), { name: "InvalidArgument" });
});

test("the stream is cancelled when the loop is left, or by the signal", async (t) => {
  const ends: Promise<unknown>[] = [];
  const session = await watched(t, ID, async function* (_request, signal) {
    const end = once(signal, "abort");
    ends.push(end);
    yield happened({ number: 1n, kind: SessionEventKind.RUN, runState: RunState.RUNNING }, ID);
    await end;
  });
  for await (const event of session.live()) {
    assert.deepEqual(shown(event), ["c1", "state", "RUNNING"]);
    break;
  }
  const controller = new AbortController();
  const live = session.live({ signal: controller.signal });
  await live.next();
  controller.abort(new Error("enough"));
  await assert.rejects(live.next(), { message: "enough" });
  await Promise.all(ends);
  assert.equal(ends.length, 2);
});
