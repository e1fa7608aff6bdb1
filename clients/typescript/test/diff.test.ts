// Two sessions are compared by what they say.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Role } from "#dist/gen/spawnmesh/content/v1/message_pb.js";
import { SessionService } from "#dist/gen/spawnmesh/session/v1/session_service_pb.js";
import { type EntryBodySchema, LabelKind } from "#dist/gen/spawnmesh/transcript/v1/entry_pb.js";
import { TranscriptService } from "#dist/gen/spawnmesh/transcript/v1/transcript_service_pb.js";
import { FakeClock, meshAt, serve } from "./server.js";

type Body = NonNullable<MessageInitShape<typeof EntryBodySchema>>;
type Text = { text: string };
type Block = { block: { case: "text"; value: Text } | { case: "thinking"; value: Text } };

const A = "ses_0000000000000000000000000a";
const B = "ses_0000000000000000000000000b";

function message(role: Role, text: string, model = ""): Body {
  const content: Block[] = [{ block: { case: "text", value: { text } } }];
  if (model) content.unshift({ block: { case: "thinking", value: { text: model } } });
  return { kind: { case: "message", value: { role, model, content } } };
}

function call(toolCallId: string, blockJson: string): Body {
  const block = { case: "toolCall", value: { toolCallId, name: "read", blockJson } } as const;
  return { kind: { case: "message", value: { role: Role.ASSISTANT, content: [{ block }] } } };
}

function result(toolCallId: string): Body {
  return { kind: { case: "message", value: { role: Role.TOOL_RESULT, toolCallId, toolName: "read" } } };
}

/** Compare two transcripts of these entries, which are read in pages of two. */
async function diff(t: Parameters<typeof serve>[0], a: Body[], b: Body[], copied = 0n) {
  const url = await serve(t, (router) => {
    router.service(SessionService, {
      getSession: ({ sessionId }) => ({
        session: { sessionId, ...(copied && sessionId === B && { fork: { sessionId: A, seq: copied } }) },
      }),
    });
    router.service(TranscriptService, {
      listEntries: ({ sessionId, direction, pageToken, filter }) => {
        const after = Number(pageToken || (direction.case === "afterSeq" ? direction.value : 0n));
        const all = (sessionId === A ? a : b).map((body, at) => {
          return { entryId: `${sessionId}-${at + 1}`, seq: BigInt(at + 1), body };
        });
        const wanted = filter?.kinds.length ? all.filter(({ body }) => body.kind?.case === "label") : all;
        const entries = wanted.filter(({ seq }) => Number(seq) > after).slice(0, 2);
        const last = Number(entries.at(-1)?.seq ?? 0n);
        const hasMore = wanted.some(({ seq }) => Number(seq) > last);
        return { entries, nextPageToken: hasMore && last ? `${last}` : "" };
      },
    });
  });
  return meshAt(url, new FakeClock()).diff(A, B, { maxEntries: 2 });
}

test("ids, models, thinking and the order of arguments do not count", async (t) => {
  const found = await diff(
    t,
    [
      message(Role.USER, `See ${A}.`),
      message(Role.ASSISTANT, "Yes.", "m1"),
      call("c1", '{"id": "c1", "arguments": {"a": 1.50, "b": [true, null]}}'),
      result("c1"),
    ],
    [
      message(Role.USER, `See ${B}.`),
      { kind: { case: "modelChange", value: { model: "m2" } } },
      message(Role.ASSISTANT, "Yes.", "m2"),
      call("c2", '{"id": "c2", "arguments": "{\\"b\\": [true, null], \\"a\\": 1.50}"}'),
      result("c2"),
    ],
  );
  assert.deepEqual([found.isEqual, found.commonCount, found.commonSeqA, found.commonSeqB], [true, 4, 4, 5]);
});

test("arguments keep the digits of their numbers, and what differs is limited", async (t) => {
  const more = ["1", "2", "3"].map((text) => message(Role.USER, text));
  const found = await diff(
    t,
    [message(Role.USER, "Go."), call("c", '{"arguments": {"a": 12345678901234567890}}'), ...more],
    [message(Role.USER, "Go."), call("c", '{"arguments": {"a": 12345678901234567891}}')],
  );
  assert.deepEqual([found.commonMessageCount, found.commonSeqA, found.isEqual], [1, 1, false]);
  assert.deepEqual(found.onlyA.map(({ seq }) => seq), [2, 3]);
  assert.deepEqual([found.isCutA, found.isCutB, found.onlyB.length], [true, false, 1]);
});

test("a copy leaves out rejected drafts and the first messages of a long source", async (t) => {
  const draft: Body = message(Role.ASSISTANT, "A draft.");
  const label: Body = {
    kind: { case: "label", value: { entryId: `${A}-3`, kind: LabelKind.SUPERSEDED } },
  };
  const found = await diff(
    t,
    [message(Role.USER, "Old."), message(Role.USER, "Go."), draft, label, message(Role.ASSISTANT, "Done.")],
    [message(Role.USER, "Go."), message(Role.ASSISTANT, "Done."), message(Role.USER, "Another.")],
    5n,
  );
  assert.deepEqual(found.forkedAt, { sessionId: A, seq: 5 });
  assert.deepEqual([found.commonMessageCount, found.leftOutCount], [2, 1]);
  assert.deepEqual([found.commonSeqA, found.commonSeqB, found.onlyA.length], [5, 2, 0]);
  assert.deepEqual(found.onlyB.map(({ seq }) => seq), [3]);
});
