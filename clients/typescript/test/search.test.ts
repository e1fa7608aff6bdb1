// Searches of transcripts, children of a session, and runs in one call.

import assert from "node:assert/strict";
import { test } from "node:test";
import { timestampDate, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code, type ConnectError } from "@connectrpc/connect";
import { InvalidArgument, type SearchHit } from "@spawnmesh/client";
import { Role } from "#dist/gen/spawnmesh/content/v1/message_pb.js";
import { RunState, SessionView } from "#dist/gen/spawnmesh/session/v1/session_pb.js";
import { SessionService } from "#dist/gen/spawnmesh/session/v1/session_service_pb.js";
import { EntryKind } from "#dist/gen/spawnmesh/transcript/v1/entry_pb.js";
import {
  type SearchEntriesRequest,
  SearchService,
} from "#dist/gen/spawnmesh/transcript/v1/search_service_pb.js";
import { FakeClock, meshAt, refusal, serve } from "./server.js";

const ID = "ses_00000000000000000000000000";
const TIME = new Date("2026-01-02T03:04:05.678Z");

type Context = Parameters<typeof serve>[0];

/** A mesh whose search refuses as it is told, and then has two pages. */
async function searchable(t: Context, ...refusals: ConnectError[]) {
  const requests: SearchEntriesRequest[] = [];
  const url = await serve(t, (router) =>
    router.service(SearchService, {
      searchEntries: (request) => {
        requests.push(request);
        const refused = refusals.shift();
        if (refused !== undefined) throw refused;
        const isLast = request.pageToken !== "";
        const hit = {
          sessionId: ID, entryId: "ent_1", seq: isLast ? 3n : 9n, kind: EntryKind.MESSAGE,
          createTime: timestampFromDate(TIME), path: "message.content[0].text.text", byteOffset: 4n,
          snippet: "the pump", fileId: "",
        };
        return { hits: [hit], nextPageToken: isLast ? "" : "2" };
      },
    }),
  );
  const clock = new FakeClock();
  return { mesh: meshAt(url, clock), clock, requests };
}

async function all(hits: AsyncIterable<SearchHit>): Promise<SearchHit[]> {
  const found: SearchHit[] = [];
  for await (const hit of hits) found.push(hit);
  return found;
}

test("hits are plain values, page by page", async (t) => {
  const { mesh, requests } = await searchable(t);
  const [first, second, ...more] = await all(mesh.search(ID, "pump", { withDescendants: true }));
  assert.deepEqual(first, {
    sessionId: ID, entryId: "ent_1", seq: 9, kind: "MESSAGE", createTime: TIME,
    path: "message.content[0].text.text", byteOffset: 4, snippet: "the pump", fileId: undefined,
  });
  assert.deepEqual([second?.seq, more], [3, []]);
  assert.deepEqual(requests[0]?.query, { case: "words", value: "pump" });
  assert.deepEqual([requests[0]?.withDescendants, requests[1]?.pageToken], [true, "2"]);
});

test("a search is narrowed, and ends at its limit", async (t) => {
  const { mesh, requests } = await searchable(t);
  const options = { kinds: ["NOTE"], roles: ["TOOL_RESULT"], since: TIME, before: TIME, limit: 1 } as const;
  assert.equal((await all(mesh.search(ID, { pattern: "P-\\d+" }, options))).length, 1);
  const [request] = requests;
  assert.equal(requests.length, 1);
  assert.deepEqual(request?.query, { case: "pattern", value: "P-\\d+" });
  assert.deepEqual([request?.filter?.kinds, request?.filter?.roles], [[EntryKind.NOTE], [Role.TOOL_RESULT]]);
  assert.deepEqual([request?.pageSize, request?.fromTime && timestampDate(request.fromTime)], [1, TIME]);
});

test("the first search of a long transcript waits until it is indexed", async (t) => {
  const busy = (seq: number) =>
    refusal(Code.Unavailable, "DEPENDENCY_UNAVAILABLE", {
      facts: { indexed_seq: String(seq), head_seq: "900" },
      retryMs: 50_000,
    });
  const { mesh, clock } = await searchable(t, ...[1, 2, 3, 4].map(busy));
  assert.equal((await all(mesh.search(ID, "pump"))).length, 2);
  assert(clock.now() > 150_000, "each answer says that the work advances");
});

test("a search that is not run is refused", async (t) => {
  const refused = refusal(Code.InvalidArgument, "SEARCH_REFUSED", { facts: { why: "NO_WORDS" } });
  const { mesh } = await searchable(t, refused);
  await assert.rejects(all(mesh.search(ID, "?")), (error) => {
    assert(error instanceof InvalidArgument);
    return error.reason === "SEARCH_REFUSED" && error.facts["why"] === "NO_WORDS";
  });
});

test("children are listed in full, and a run is a spawn and its result", async (t) => {
  const filters: unknown[] = [];
  const latestRun = { runId: "run_1", state: RunState.SUCCEEDED, resultText: "done" };
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      spawnSession: () => ({ session: { sessionId: ID } }),
      waitSession: () => ({ session: { sessionId: ID, latestRun }, done: true }),
      getSession: () => ({ session: { sessionId: ID } }),
      listSessions: ({ filter, view }) => {
        filters.push([filter, view]);
        return { sessions: [{ sessionId: "ses_child", latestRun }] };
      },
    }),
  );
  const mesh = meshAt(url, new FakeClock());
  assert.equal((await mesh.run("Work.", { waitMs: 1000 })).text, "done");
  const texts: unknown[] = [];
  for await (const child of (await mesh.session(ID)).children()) {
    texts.push([child.id, child.latestRun?.resultText]);
  }
  assert.deepEqual(texts, [["ses_child", "done"]]);
  assert.deepEqual(filters, [[`parent_session_id = ${ID}`, SessionView.FULL]]);
});
