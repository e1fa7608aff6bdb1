import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Code } from "@connectrpc/connect";
import { connect, MeshError } from "@spawnmesh/client";
import { crc32c } from "#dist/crc32c.js";
import {
  AttachmentBlobService,
  type UploadFileRequest,
} from "#dist/gen/spawnmesh/attachment_blob/v1/attachment_blob_service_pb.js";
import { type UploadSpec, UploadState } from "#dist/gen/spawnmesh/attachment_blob/v1/upload_pb.js";
import {
  SessionService,
  type SpawnSessionRequest,
} from "#dist/gen/spawnmesh/session/v1/session_service_pb.js";
import { FakeClock, meshAt, refusal, serve } from "./server.js";

const ID = "ses_00000000000000000000000000";
const MIB = 1024 * 1024;
const SIZE = 3 * MIB + 5;
const LARGE = Uint8Array.from({ length: SIZE }, (_, index) => (index * 7 + (index >> 9)) % 251);
const SHA256 = createHash("sha256").update(LARGE).digest("hex");

type Context = Parameters<typeof serve>[0];
/** Refuses a message of the n-th stream, or none. */
type Disturb = (stream: number, request: UploadFileRequest) => unknown;

/** A service that keeps one upload, and the requests that it got. */
class Store {
  readonly data = new Uint8Array(SIZE);
  readonly spawns: SpawnSessionRequest[] = [];
  readonly offsets: number[][] = [];
  spec: UploadSpec | undefined;
  durable = 0;
  state = UploadState.OPEN;
  url = "";

  async serve(t: Context, disturb: Disturb = () => undefined): Promise<this> {
    this.url = await serve(t, (router) => {
      router.service(SessionService, {
        spawnSession: (request) => {
          this.spawns.push(request);
          return { session: { sessionId: ID } };
        },
      });
      router.service(AttachmentBlobService, {
        uploadFile: async (requests) => {
          const stream = this.offsets.push([]) - 1;
          for await (const request of requests) {
            const failure = disturb(stream, request);
            if (failure !== undefined) throw failure;
            this.take(stream, request);
          }
          return { upload: this.upload() };
        },
      });
    });
    return this;
  }

  private take(stream: number, { message }: UploadFileRequest): void {
    if (message.case === "spec") this.spec = message.value;
    if (message.case === "finish") this.state = UploadState.COMPLETE;
    if (message.case !== "chunk") return;
    const { offset, data, crc32c: check } = message.value;
    assert.equal(Number(offset), this.durable, "a chunk continues what is durable");
    assert.equal(check, crc32c(data));
    this.offsets[stream]?.push(Number(offset));
    this.data.set(data, this.durable);
    this.durable += data.length;
  }

  private upload() {
    const { uploadId = "", name = "" } = this.spec ?? {};
    return { uploadId, name, state: this.state, durableBytes: BigInt(this.durable) };
  }
}

async function refused(call: Promise<unknown>): Promise<MeshError> {
  const error: unknown = await call.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  assert(error instanceof MeshError, String(error));
  return error;
}

test("the checksum is CRC-32C", () => {
  assert.equal(crc32c(new TextEncoder().encode("123456789")), 0xe3069283);
  assert.equal(crc32c(new Uint8Array()), 0);
  assert.equal(crc32c(new Uint8Array(32)), 0x8a9136aa);
});

test("a large file is uploaded, and a small one is in the request", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "spawnmesh-"));
  t.after(() => rm(folder, { recursive: true }));
  await writeFile(join(folder, "large.bin"), LARGE);
  const store = await new Store().serve(t);
  const mesh = connect({ url: store.url, token: "t" });
  t.after(() => mesh.close());
  const seen: [string, number, number][] = [];
  await mesh.spawn("Read.", {
    attachments: [{ path: join(folder, "large.bin"), mimeType: "x/y" }, { name: "s.txt", content: "s" }],
    onProgress: (...progress) => seen.push(progress),
  });
  assert.deepEqual(store.data, LARGE);
  assert.deepEqual(
    [store.spec?.name, store.spec?.sizeBytes, store.spec?.sha256, store.spec?.mimeType],
    ["large.bin", BigInt(SIZE), SHA256, "x/y"],
  );
  const [spawn] = store.spawns;
  assert.deepEqual(spawn?.uploads.map((upload) => upload.uploadId), [store.spec?.uploadId]);
  assert.match(store.spec?.uploadId ?? "", /^upl_[0-9a-hjkmnp-tv-z]{26}$/);
  assert.deepEqual(spawn?.attachments.map((file) => file.name), ["s.txt"]);
  assert.deepEqual(seen.map(([, done]) => done), [0, MIB, 2 * MIB, 3 * MIB, SIZE]);
  assert(seen.every(([name, , size]) => name === "large.bin" && size === SIZE));
});

test("an upload goes on where its stream broke", async (t) => {
  const store = new Store();
  let left = 4;
  await store.serve(t, () => {
    // Streams break behind the first and the second part, and the service is away for a while.
    if (store.durable < MIB || (left <= 1 && store.durable < 2 * MIB) || left <= 0) return undefined;
    left -= 1;
    return refusal(Code.Unavailable, "DRAINING");
  });
  await meshAt(store.url, new FakeClock()).spawn("Read.", { attachments: [{ name: "l", content: LARGE }] });
  assert.deepEqual([left, store.data], [0, LARGE]);
  const sent = store.offsets.filter((offsets) => offsets.length > 0);
  assert.deepEqual(sent, [[0], [MIB], [2 * MIB, 3 * MIB]]);
});

test("bytes that the tenant has are not sent", async (t) => {
  const store = new Store();
  store.state = UploadState.COMPLETE;
  await store.serve(t);
  await meshAt(store.url, new FakeClock()).spawn("Read.", { attachments: [{ name: "l", content: LARGE }] });
  assert.deepEqual(store.offsets, [[]]);
  assert.equal(store.spawns[0]?.uploads.length, 1);
});

test("the same file has the same id, and another one has not", async (t) => {
  const ids = new Set<string>();
  const store = new Store();
  store.state = UploadState.COMPLETE;
  await store.serve(t);
  const mesh = meshAt(store.url, new FakeClock());
  const files = [["l", LARGE], ["l", LARGE], ["m", LARGE], ["l", LARGE.subarray(1)]] as const;
  for (const [name, content] of files) {
    await mesh.spawn("Read.", { attachments: [{ name, content }] });
    ids.add(store.spec?.uploadId ?? "");
  }
  assert.equal(ids.size, 3);
});

test("an upload waits while another program sends the file, and goes on if that one stalls", async (t) => {
  const clock = new FakeClock();
  const store = new Store();
  let isTaken = true;
  await store.serve(t, (_stream, { message }) => {
    if (message.case !== "chunk" || !isTaken) return undefined;
    isTaken = false;
    return refusal(Code.Aborted, "UPLOAD_TAKEN_OVER");
  });
  await meshAt(store.url, clock).spawn("Read.", { attachments: [{ name: "l", content: LARGE }] });
  assert(clock.now() >= 30_000, `it waited ${clock.now()} ms`);
  assert.deepEqual(store.data, LARGE);
});

test("a chunk that was damaged on its way is sent again, but not for ever", async (t) => {
  for (const damaged of [2, 99]) {
    const store = new Store();
    let count = 0;
    await store.serve(t, (_stream, { message }) => {
      if (message.case !== "chunk" || count++ >= damaged) return undefined;
      return refusal(Code.InvalidArgument, "UPLOAD_CRC_DIFFERS");
    });
    const attachments = [{ name: "l", content: LARGE }];
    const call = meshAt(store.url, new FakeClock()).spawn("Read.", { attachments });
    if (damaged === 2) await call;
    else assert.equal((await refused(call)).reason, "UPLOAD_CRC_DIFFERS");
    assert(count < 10, `${count} chunks`);
  }
});

test("a refusal of an upload names the file, and nothing is spawned", async (t) => {
  const store = new Store();
  const facts = { budget: "open_uploads" };
  await store.serve(t, () => refusal(Code.ResourceExhausted, "BUDGET_EXCEEDED", { facts }));
  const clock = new FakeClock();
  const error = await refused(
    meshAt(store.url, clock).spawn("Read.", { attachments: [{ name: "large", content: LARGE }] }),
  );
  assert.deepEqual([error.reason, error.facts["file"]], ["BUDGET_EXCEEDED", "large"]);
  assert.deepEqual([store.spawns.length, clock.pauses], [0, []]);
});

test("a file that becomes shorter while it is read is refused", async (t) => {
  const store = await new Store().serve(t);
  const source = {
    size: SIZE,
    read: async (offset: number, length: number) => LARGE.subarray(offset, Math.min(offset + length, MIB)),
    sha256: async () => SHA256,
    close: async () => void (closed = true),
  };
  let closed = false;
  const files = { nameOf: () => "shrinking.bin", open: async () => source };
  const mesh = meshAt(store.url, new FakeClock(), 30_000, files);
  const error = await refused(mesh.spawn("Read.", { attachments: [{ path: "shrinking.bin" }] }));
  assert.deepEqual(
    [error.reason, error.facts["file"], error.facts["offset"], closed],
    ["UPLOAD_HASH_DIFFERS", "shrinking.bin", String(MIB), true],
  );
  assert.equal(store.spawns.length, 0);
});

test("an aborted upload throws the reason of its signal", async (t) => {
  const stop = new AbortController();
  const store = new Store();
  await store.serve(t, (_stream, { message }) => {
    if (message.case === "chunk") stop.abort(new Error("enough"));
    return undefined;
  });
  const options = { attachments: [{ name: "l", content: LARGE }], signal: stop.signal };
  await assert.rejects(meshAt(store.url, new FakeClock()).spawn("Read.", options), /^Error: enough$/);
  assert.equal(store.spawns.length, 0);
});
