// Long work: started, followed, awaited, cancelled, and its typed results.

import assert from "node:assert/strict";
import { test } from "node:test";
import { create, type DescMessage, type MessageInitShape } from "@bufbuild/protobuf";
import { type Any, anyPack, durationMs, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { Aborted, Cancelled, DeadlineExceeded, NotFound, type Operation } from "@spawnmesh/client";
import type { OperationSchema } from "#dist/gen/google/longrunning/operations_pb.js";
import { ErrorInfoSchema } from "#dist/gen/google/rpc/error_details_pb.js";
import {
  OperationMetadataSchema,
  OperationService,
} from "#dist/gen/spawnmesh/operations/v1/operation_service_pb.js";
import {
  RecountTranscriptRequestSchema,
  RecountTranscriptResponseSchema,
  StorageService,
  TierAction,
  TierTranscriptRequestSchema,
  TierTranscriptResponseSchema,
} from "#dist/gen/spawnmesh/transcript/v1/storage_service_pb.js";
import type { Mesh } from "#dist/mesh.js";
import { FakeClock, meshAt, refusal, serve } from "./server.js";

const ID = "ses_00000000000000000000000000";
const NAME = "services/transcript/operations/opr_00000000000000000000000000";
const TIME = new Date("2026-01-02T03:04:05.678Z");

type Context = Parameters<typeof serve>[0];
type Wire = MessageInitShape<typeof OperationSchema>;

function packed<D extends DescMessage>(schema: D, value: MessageInitShape<D>): Any {
  return anyPack(schema, create(schema, value));
}

function wire(metadata: MessageInitShape<typeof OperationMetadataSchema>, more: Wire = {}): Wire {
  const known = { method: "TierTranscript", subject: "ada", createTime: timestampFromDate(TIME) };
  return { name: NAME, metadata: packed(OperationMetadataSchema, { ...known, ...metadata }), ...more };
}

const TIERED = packed(TierTranscriptResponseSchema, { examinedEntryCount: 7n, cooledBytes: 9000n });

/** A mesh whose operation is as the answers say, one after the other. */
async function answering(t: Context, ...answers: (Wire | ConnectError)[]) {
  const waits: number[] = [];
  const calls: unknown[] = [];
  const next = (): Wire => {
    const answer = answers.length > 1 ? answers.shift() : answers[0];
    if (answer instanceof ConnectError) throw answer;
    return answer ?? {};
  };
  const url = await serve(t, (router) => {
    router.service(OperationService, {
      getOperation: next,
      waitOperation: ({ timeout }) => {
        waits.push(timeout ? durationMs(timeout) : -1);
        return next();
      },
      listOperations: ({ name, filter, pageToken }) => {
        calls.push([name, filter, pageToken]);
        const nextPageToken = pageToken === "" ? "2" : "";
        return { operations: [wire({}, { name: `${NAME}${pageToken}` })], nextPageToken };
      },
      cancelOperation: ({ name }) => (calls.push(["cancel", name]), {}),
      deleteOperation: () => {
        throw refusal(Code.Aborted, "CONFLICT");
      },
    });
    router.service(StorageService, {
      tierTranscript: (request) => (calls.push(request), next()),
      recountTranscript: (request) => (calls.push(request), next()),
    });
  });
  const clock = new FakeClock();
  return { mesh: meshAt(url, clock), clock, waits, calls };
}

async function refused(call: Promise<unknown>): Promise<unknown> {
  return call.then(
    () => assert.fail("the call is not refused"),
    (error: unknown) => error,
  );
}

test("an operation is started and awaited, and its result is typed", async (t) => {
  const request = packed(TierTranscriptRequestSchema, { sessionId: ID, action: TierAction.DRY_RUN });
  const half = wire({ request, doneCount: 3n, totalCount: 7n, partialResponse: TIERED });
  const done = wire({ request, doneCount: 7n, totalCount: 7n, endTime: timestampFromDate(TIME) });
  const { mesh, waits, calls } = await answering(t, wire({ request }), half, {
    ...done,
    done: true,
    result: { case: "response", value: TIERED },
  });
  const operation = await mesh.operations.tier(ID, "DRY_RUN", { requestId: "r" });
  const { name, view } = operation;
  assert.deepEqual([name, view.isDone, view.response, view.subject], [NAME, false, undefined, "ada"]);
  assert.deepEqual(view.request, { type: "TierTranscript", sessionId: ID, action: "DRY_RUN" });
  assert.equal(view.createTime?.getTime(), TIME.getTime());
  const seen: (number | undefined)[][] = [];
  const counts = await operation.result({
    onProgress: ({ doneCount, totalCount, response }) =>
      seen.push([doneCount, totalCount, response?.examinedEntries]),
  });
  assert.deepEqual([counts.examinedEntries, counts.cooledBytes, counts.failureReason], [7, 9000, undefined]);
  assert.deepEqual(seen, [[3, 7, 7], [7, 7, 7]]);
  assert.deepEqual(waits, [60_000, 60_000]);
  assert.equal((calls[0] as { requestId: string }).requestId, "r");
});

test("a recount is started with a request id of its own", async (t) => {
  const request = packed(RecountTranscriptRequestSchema, { sessionId: ID, dryRun: true });
  const counts = { examinedEntryCount: 2n, tokenCountBefore: 5n, tokenCountAfter: 6n, tokenVocabulary: "o" };
  const value = packed(RecountTranscriptResponseSchema, counts);
  const done = { done: true, result: { case: "response", value } } as const;
  const { mesh, calls } = await answering(t, wire({ method: "RecountTranscript", request }, done));
  const operation = await mesh.operations.recount(ID, { dryRun: true });
  assert.deepEqual(operation.view.request, { type: "RecountTranscript", sessionId: ID, dryRun: true });
  assert.deepEqual(await operation.result(), {
    type: "RecountTranscript",
    examinedEntries: 2,
    recountedEntries: 0,
    tokensBefore: 5,
    tokensAfter: 6,
    tokenVocabulary: "o",
  });
  const { requestId, dryRun } = calls[0] as { requestId: string; dryRun: boolean };
  assert(requestId.length > 10 && dryRun);
});

test("a message of a newer mesh is returned as its bytes", async (t) => {
  const value = { typeUrl: "type.googleapis.com/spawnmesh.later.v1.Later", value: Uint8Array.of(1) };
  const { mesh } = await answering(t, wire({}, { done: true, result: { case: "response", value } }));
  const later = { type: "unknown", typeName: "spawnmesh.later.v1.Later", value: Uint8Array.of(1) };
  assert.deepEqual(await (await mesh.operations.get(NAME)).result(), later);
});

test("the error of an operation is a typed refusal", async (t) => {
  const info = { reason: "CANCELLED", domain: "transcript.spawnmesh", metadata: { name: NAME } };
  const details = [packed(ErrorInfoSchema, info)];
  const status = { code: Code.Canceled, message: "it was cancelled", details };
  const { mesh } = await answering(t, wire({}, { done: true, result: { case: "error", value: status } }));
  const operation = await mesh.operations.get(NAME);
  const error = await refused(operation.result());
  assert(error instanceof Cancelled);
  assert.deepEqual([error.message, error.domain], ["it was cancelled", info.domain]);
  assert.deepEqual(error.facts, { name: NAME });
  assert.equal(operation.view.error?.reason, "CANCELLED");
});

test("a wait goes on over a restart of the service", async (t) => {
  const down = Array.from({ length: 8 }, () => refusal(Code.Unavailable, "DRAINING"));
  const done = wire({}, { done: true, result: { case: "response", value: TIERED } });
  const { mesh, clock } = await answering(t, wire({}), ...down, done);
  const operation = await mesh.operations.get(NAME);
  assert.equal((await operation.result()).type, "TierTranscript");
  assert(clock.pauses.length >= 8);
});

test("a wait ends after its time, and the operation goes on", async (t) => {
  const { mesh, waits } = await answering(t, wire({}));
  const operation = await mesh.operations.get(NAME);
  const late = await refused(operation.result({ timeoutMs: 1500 }));
  assert(late instanceof DeadlineExceeded);
  assert.match(late.message, /is not done; it goes on/);
  assert.deepEqual(waits, [1500]);
});

test("operations are listed page by page, cancelled and deleted", async (t) => {
  const { mesh, calls } = await answering(t, wire({}));
  const names: string[] = [];
  for await (const { name } of mesh.operations.list({ isDone: false })) names.push(name);
  assert.deepEqual(names, [NAME, `${NAME}2`]);
  const list = ["services/transcript", "done = false"];
  assert.deepEqual(calls, [[...list, ""], [...list, "2"]]);
  const operation: Operation = await mesh.operations.get(NAME);
  await operation.cancel();
  assert.deepEqual(calls.at(-1), ["cancel", NAME]);
  assert((await refused(operation.delete())) instanceof Aborted);
});

test("what is no name of an operation is not found", async (t) => {
  const { mesh }: { mesh: Mesh } = await answering(t, wire({}));
  for (const name of ["", "operations/1", "services/unknown/operations/opr_00000000000000000000000000"]) {
    assert((await refused(mesh.operations.get(name))) instanceof NotFound);
  }
});
