import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import type { AttachmentSet } from "@spawnmesh/client";
import { AttachmentBlobService } from "#dist/gen/spawnmesh/attachment_blob/v1/attachment_blob_service_pb.js";
import { type AttachmentSetSchema, SetState } from "#dist/gen/spawnmesh/attachment_blob/v1/attachment_pb.js";
import type { Files } from "#dist/files.js";
import { FakeClock, meshAt, refusal, serve } from "./server.js";

const SET = "att_00000000000000000000000000";
const PIECE = 1000;
const SIZE = 3 * PIECE + 5;
const DATA = Uint8Array.from({ length: SIZE }, (_, index) => (index * 7 + (index >> 9)) % 251);
const TIME = new Date("2026-01-02T03:04:05.678Z");

type Context = Parameters<typeof serve>[0];
/** Return the refusal of a stream in front of the piece at the offset, or undefined. */
type Disturb = (stream: number, offset: number) => unknown;

function file(name: string, data: Uint8Array) {
  const sha256 = createHash("sha256").update(data).digest("hex");
  return { name, sizeBytes: BigInt(data.length), sha256 };
}

/** A service that has one set: a file, and an empty one. */
class Store {
  readonly offsets: number[] = [];
  readonly clock = new FakeClock();
  data = DATA;
  set: MessageInitShape<typeof AttachmentSetSchema> = {
    setId: SET,
    sessionId: "ses_1",
    state: SetState.ATTACHED,
    files: [{ ...file("a.bin", DATA), mimeType: "x/y" }, file("empty", new Uint8Array())],
    totalBytes: BigInt(SIZE),
    createTime: timestampFromDate(TIME),
    runId: "run_1",
  };

  async serve(t: Context, disturb: Disturb = () => undefined): Promise<Files> {
    const store = this;
    const url = await serve(t, (router) =>
      router.service(AttachmentBlobService, {
        getSet: ({ setId }) => {
          if (setId !== SET) throw refusal(Code.NotFound, "NOT_FOUND");
          return { set: this.set };
        },
        readFile: async function* (request) {
          const data = request.name === "empty" ? new Uint8Array() : store.data;
          const stream = store.offsets.push(Number(request.offset)) - 1;
          let offset = Number(request.offset);
          do {
            const failure = disturb(stream, offset);
            if (failure !== undefined) throw failure;
            yield { data: data.subarray(offset, offset + PIECE) };
            offset += PIECE;
          } while (offset < data.length);
        },
      }),
    );
    return meshAt(url, this.clock).files;
  }
}

test("a set has its files with sizes and hashes", async (t) => {
  const files = await new Store().serve(t);
  const set: AttachmentSet = await files.get(SET);
  const [first] = set.files;
  assert.deepEqual(
    [set.setId, set.sessionId, set.state, set.totalBytes, set.createTime, set.runId],
    [SET, "ses_1", "ATTACHED", SIZE, TIME, "run_1"],
  );
  assert.deepEqual(first, { ...file("a.bin", DATA), sizeBytes: SIZE, mimeType: "x/y" });
  assert.deepEqual(set.files.map(({ name }) => name), ["a.bin", "empty"]);
  await assert.rejects(files.get("att_other"), { name: "NotFound", reason: "NOT_FOUND" });
});

test("sets of a session are fetched page by page", async (t) => {
  const asked: [string, string][] = [];
  const url = await serve(t, (router) =>
    router.service(AttachmentBlobService, {
      listSets: ({ sessionId, pageToken }) => {
        asked.push([sessionId, pageToken]);
        // The second page is empty, and another one follows.
        const sets = pageToken === "2" ? [] : [{ setId: `att_${pageToken}` }];
        return { sets, nextPageToken: { "": "2", 2: "3" }[pageToken] ?? "" };
      },
    }),
  );
  const ids: string[] = [];
  const { files } = meshAt(url, new FakeClock());
  for await (const set of files.sets({ sessionId: "ses_1" })) ids.push(set.setId);
  for await (const set of files.sets()) {
    ids.push(set.setId);
    break;
  }
  assert.deepEqual(ids, ["att_", "att_3", "att_"]);
  assert.deepEqual(asked, [["ses_1", ""], ["ses_1", "2"], ["ses_1", "3"], ["", ""]]);
});

test("a download returns all bytes, and reports them", async (t) => {
  const store = new Store();
  const files = await store.serve(t);
  const seen: [string, number, number][] = [];
  const onProgress = (...progress: [string, number, number]) => void seen.push(progress);
  assert.deepEqual(await files.download(SET, "a.bin", { onProgress }), DATA);
  assert.deepEqual(seen.map(([, done]) => done), [PIECE, 2 * PIECE, 3 * PIECE, SIZE]);
  assert(seen.every(([name, , size]) => name === "a.bin" && size === SIZE));
  assert.deepEqual(await files.download(SET, "empty"), new Uint8Array());
  assert.deepEqual(store.offsets, [0, 0]);
});

test("a download goes on where its stream broke", async (t) => {
  const store = new Store();
  const files = await store.serve(t, (stream, offset) => {
    // Streams break behind the first and the second piece, and the service is away in between.
    const isBroken = (stream < 4 && offset === PIECE) || (stream === 4 && offset === 2 * PIECE);
    return isBroken ? refusal(Code.Unavailable, "DRAINING") : undefined;
  });
  assert.deepEqual(await files.download(SET, "a.bin"), DATA);
  assert.deepEqual(store.offsets, [0, PIECE, PIECE, PIECE, PIECE, 2 * PIECE]);
});

test("a download gives up after a minute of an outage", async (t) => {
  const store = new Store();
  const files = await store.serve(t, () => refusal(Code.Unavailable, "DRAINING"));
  await assert.rejects(files.download(SET, "a.bin"), { name: "Unavailable", reason: "DRAINING" });
  assert(store.clock.now() > 50_000 && store.clock.now() <= 60_000, `after ${store.clock.now()} ms`);
});

test("a download waits ten minutes while the service has too many", async (t) => {
  for (const waitMs of [300_000, Number.POSITIVE_INFINITY]) {
    const store = new Store();
    const files = await store.serve(t, () =>
      store.clock.now() < waitMs ? refusal(Code.ResourceExhausted, "POOL_EXHAUSTED") : undefined,
    );
    const call = files.download(SET, "a.bin");
    if (waitMs === 300_000) assert.deepEqual(await call, DATA);
    else await assert.rejects(call, { name: "ResourceExhausted", reason: "POOL_EXHAUSTED" });
    assert(store.clock.now() >= 300_000 && store.clock.now() <= 670_000, `${store.clock.now()} ms`);
  }
});

const DAMAGED = {
  "other bytes": Uint8Array.from(DATA, (byte, index) => (index === 1234 ? byte ^ 1 : byte)),
  "too few bytes": DATA.subarray(0, SIZE - 1),
  "too many bytes": Uint8Array.from([...DATA, 0]),
};

for (const [damage, data] of Object.entries(DAMAGED)) {
  test(`a download of ${damage} is refused`, async (t) => {
    const store = new Store();
    store.data = data;
    const files = await store.serve(t);
    const expected = { name: "DataLoss", reason: "STORED_HASH_DIFFERS", facts: { set_id: SET } };
    await assert.rejects(files.download(SET, "a.bin"), expected);
    assert.deepEqual(store.offsets, [0]);
  });
}

test("a download that failed keeps no program alive", async (t) => {
  const timers = () => process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
  const store = new Store();
  const files = await store.serve(t);
  await files.get(SET);
  const before = timers();
  store.data = DAMAGED["too many bytes"];
  await assert.rejects(files.download(SET, "a.bin"), { reason: "STORED_HASH_DIFFERS" });
  assert.equal(timers(), before);
});

test("refusals of a download are not repeated", async (t) => {
  const store = new Store();
  const state = { state: "RELEASED" };
  const files = await store.serve(t, () =>
    refusal(Code.FailedPrecondition, "ATTACHMENT_SET_STATE", { facts: state }),
  );
  const expected = { name: "FailedPrecondition", reason: "ATTACHMENT_SET_STATE", facts: state };
  await assert.rejects(files.download(SET, "a.bin"), expected);
  assert.deepEqual(store.offsets, [0]);
  const facts = { resource: "file", id: "b.bin" };
  await assert.rejects(files.download(SET, "b.bin"), { name: "NotFound", reason: "NOT_FOUND", facts });
  assert.deepEqual(store.offsets, [0]);
  store.set = { ...store.set, state: SetState.RELEASED, files: [] };
  await assert.rejects(files.download(SET, "a.bin"), {
    name: "FailedPrecondition",
    reason: "ATTACHMENT_SET_STATE",
    facts: { set_id: SET, state: "RELEASED" },
  });
  assert.deepEqual(store.offsets, [0]);
});

test("an aborted download throws the reason of its signal", async (t) => {
  const stop = new AbortController();
  const store = new Store();
  const files = await store.serve(t);
  const options = { onProgress: () => stop.abort(new Error("enough")), signal: stop.signal };
  await assert.rejects(files.download(SET, "a.bin", options), /^Error: enough$/);
  assert.deepEqual(store.offsets, [0]);
  await assert.rejects(files.download(SET, "a.bin", { signal: stop.signal }), /^Error: enough$/);
  assert.deepEqual(store.offsets, [0]);
});
