// Files that runs have published: listed, downloaded, and handed to other sessions.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import type { Attachment, MeshError, OutputSet } from "@spawnmesh/client";
import { AttachmentBlobService } from "#dist/gen/spawnmesh/attachment_blob/v1/attachment_blob_service_pb.js";
import type { OutputSetSchema } from "#dist/gen/spawnmesh/session/v1/output_pb.js";
import { RunState, SessionEventKind } from "#dist/gen/spawnmesh/session/v1/session_pb.js";
import {
  SessionService,
  type SpawnSessionRequest,
} from "#dist/gen/spawnmesh/session/v1/session_service_pb.js";
import type { Mesh } from "#dist/mesh.js";
import { FakeClock, happened, meshAt, refusal, serve } from "./server.js";

const ID = "ses_00000000000000000000000000";
const TIME = new Date("2026-01-02T03:04:05.678Z");

type Context = Parameters<typeof serve>[0];
type Wire = MessageInitShape<typeof OutputSetSchema>;

const FILES: Record<string, Record<string, string>> = {
  att_1: { "report.md": "# Draft", "table.csv": "a,b" },
  att_2: { "report.md": "# Report" },
};

function output(setId: string, runId: string): Wire {
  const files = Object.entries(FILES[setId] ?? {}).map(([name, text]) => {
    const sha256 = createHash("sha256").update(text).digest("hex");
    return { name, sizeBytes: BigInt(text.length), sha256, mimeType: "text/plain" };
  });
  const totalBytes = files.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0n);
  const requestId = `publish:${setId}`;
  return { setId, sessionId: ID, runId, requestId, files, totalBytes, publishTime: timestampFromDate(TIME) };
}

/** A mesh with one session, whose two runs have published a set each. */
class Store {
  readonly asked: [string, string][] = [];
  readonly spawns: SpawnSessionRequest[] = [];
  damaged = "";
  /** The sets whose files are gone. */
  readonly released = new Set<string>();

  async serve(t: Context): Promise<Mesh> {
    const store = this;
    const url = await serve(t, (router) => {
      router.service(SessionService, {
        getSession: ({ sessionId }) => {
          const run = { runId: "run_2", state: RunState.SUCCEEDED };
          return { session: { sessionId, latestRun: { ...run, outputFileCount: 1, outputTotalBytes: 8n } } };
        },
        listOutputSets: ({ runId, pageToken }) => {
          store.asked.push([runId, pageToken]);
          if (runId !== "") return { outputSets: [output("att_2", runId)] };
          // The second page is empty, and another one follows.
          const pages: Record<string, Wire> = { "": output("att_1", "run_1"), 3: output("att_2", "run_2") };
          const one = pages[pageToken];
          return { outputSets: one ? [one] : [], nextPageToken: { "": "2", 2: "3" }[pageToken] ?? "" };
        },
        watchSession: async function* () {
          const kind = SessionEventKind.FILES_PUBLISHED;
          yield happened({ number: 1n, kind, runId: "run_1", setId: "att_1" });
          yield happened({ number: 2n, kind: SessionEventKind.CLOSED });
        },
        spawnSession: (request) => {
          store.spawns.push(request);
          if (request.references[0]?.name === "gone") {
            throw refusal(Code.FailedPrecondition, "ATTACHMENT_SET_STATE", { facts: { index: "1" } });
          }
          return { session: { sessionId: ID } };
        },
      });
      router.service(AttachmentBlobService, {
        readFile: async function* ({ setId, name }) {
          if (store.released.has(setId)) {
            throw refusal(Code.FailedPrecondition, "ATTACHMENT_SET_STATE", { facts: { set_id: setId } });
          }
          const text = name === store.damaged ? "other" : (FILES[setId]?.[name] ?? "");
          yield { data: new TextEncoder().encode(text) };
        },
      });
    });
    return meshAt(url, new FakeClock());
  }
}

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

test("the published files of a session come from every page, in order", async (t) => {
  const store = new Store();
  const session = await (await store.serve(t)).session(ID);
  const [first, second, ...others]: OutputSet[] = await all(session.outputs());
  assert.deepEqual(first, {
    setId: "att_1",
    sessionId: ID,
    runId: "run_1",
    requestId: "publish:att_1",
    files: output("att_1", "").files?.map((file) => ({ ...file, sizeBytes: Number(file.sizeBytes) })),
    totalBytes: 10,
    publishTime: TIME,
  });
  assert.deepEqual([second?.setId, others], ["att_2", []]);
  assert.deepEqual(store.asked, [["", ""], ["", "2"], ["", "3"]]);
  assert.deepEqual((await all(session.outputs({ runId: "run_9" }))).map(({ runId }) => runId), ["run_9"]);
  assert.deepEqual([session.latestRun?.outputFileCount, session.latestRun?.outputTotalBytes], [1, 8]);
});

test("an event names the output set, and other events name none", async (t) => {
  const session = await (await new Store().serve(t)).session(ID);
  const events = await all(session.events());
  assert.deepEqual(events.map(({ type, setId }) => [type, setId]), [
    ["FILES_PUBLISHED", "att_1"],
    ["CLOSED", undefined],
  ]);
});

test("published files are downloaded with their bytes, one after the other", async (t) => {
  const store = new Store();
  const session = await (await store.serve(t)).session(ID);
  const seen: string[] = [];
  const files = await all(session.downloadOutputs({ onProgress: (name) => seen.push(name) }));
  const decoder = new TextDecoder();
  const told = files.map(({ setId, runId, name, data }) => [setId, runId, name, decoder.decode(data)]);
  assert.deepEqual(told, [
    ["att_1", "run_1", "report.md", "# Draft"],
    ["att_1", "run_1", "table.csv", "a,b"],
    ["att_2", "run_2", "report.md", "# Report"],
  ]);
  assert.deepEqual(seen, ["report.md", "table.csv", "report.md"]);
  store.damaged = "table.csv";
  const names: string[] = [];
  await assert.rejects(
    async () => {
      for await (const { name } of session.downloadOutputs()) names.push(name);
    },
    { reason: "STORED_HASH_DIFFERS" },
  );
  assert.deepEqual(names, ["report.md"]);
});

test("a released set is refused after the files of the others have come", async (t) => {
  const store = new Store();
  store.released.add("att_1");
  const session = await (await store.serve(t)).session(ID);
  const seen: string[] = [];
  const read = async () => {
    for await (const { setId, name } of session.downloadOutputs()) seen.push(`${setId}/${name}`);
  };
  const facts = { set_id: "att_1" };
  await assert.rejects(read, { name: "FailedPrecondition", reason: "ATTACHMENT_SET_STATE", facts });
  assert.deepEqual(seen, ["att_2/report.md"]);
  store.released.add("att_2");
  await assert.rejects(read, { facts }, "the first refusal is thrown");
});

test("a spawn names files of other sets, and sends no bytes of them", async (t) => {
  const store = new Store();
  const mesh = await store.serve(t);
  const attachments: Attachment[] = [
    { setId: "att_1", name: "report.md", newName: "draft.md" },
    { name: "s.txt", content: "s" },
    { setId: "att_2", name: "report.md" },
  ];
  await mesh.spawn("Compare.", { attachments });
  const [spawn] = store.spawns;
  assert.deepEqual(spawn?.attachments.map(({ name }) => name), ["s.txt"]);
  assert.deepEqual(
    spawn?.references.map(({ setId, name, newName }) => [setId, name, newName]),
    [["att_1", "report.md", "draft.md"], ["att_2", "report.md", ""]],
  );
});

test("a refusal counts files by reference behind all others, and names them", async (t) => {
  const mesh = await new Store().serve(t);
  const attachments: Attachment[] = [
    { setId: "att_1", name: "gone", newName: "new.md" },
    { name: "s.txt", content: "s" },
  ];
  const error: MeshError = await mesh.spawn("Read.", { attachments }).then(
    () => assert.fail("it was not refused"),
    (refused) => refused,
  );
  assert.deepEqual([error.reason, error.facts["file"]], ["ATTACHMENT_SET_STATE", "new.md"]);
});
