import assert from "node:assert/strict";
import { test } from "node:test";
import { Code, ConnectError } from "@connectrpc/connect";
import { SessionService } from "#dist/gen/spawnmesh/session/v1/session_service_pb.js";
import {
  connect,
  FailedPrecondition,
  Internal,
  InvalidArgument,
  MeshError,
  NotFound,
  PermissionDenied,
  ResourceExhausted,
  Unavailable,
} from "@spawnmesh/client";
import { FakeClock, meshAt, refusal, serve } from "./server.js";

const ID = "ses_00000000000000000000000000";

async function refused(call: Promise<unknown>): Promise<MeshError> {
  const error = await call.then(
    () => assert.fail("the call succeeded"),
    (error: unknown) => error,
  );
  assert(error instanceof MeshError, `${error} is no MeshError`);
  return error;
}

test("a refusal has the reason, the facts, the fields and the pause of the service", async (t) => {
  const fields = { task: "is empty", "attachments[2].name": "is too long" };
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      spawnSession: () => {
        const more = { facts: { max_bytes: "7" }, fields, retryMs: 1500 };
        throw refusal(Code.InvalidArgument, "INVALID_REQUEST", more);
      },
    }),
  );
  const error = await refused(meshAt(url, new FakeClock()).spawn(""));
  assert(error instanceof InvalidArgument);
  assert.equal(error.name, "InvalidArgument");
  assert.equal(error.reason, "INVALID_REQUEST");
  assert.equal(error.status, "INVALID_ARGUMENT");
  assert.equal(error.message, "the text of INVALID_REQUEST");
  assert.deepEqual(error.facts, { max_bytes: "7" });
  assert.deepEqual(
    error.violations.map(({ field, description }) => [field, description]),
    Object.entries(fields),
  );
  assert.equal(error.retryAfterMs, 1500);
  assert.equal(error.domain, "session.spawnmesh");
});

const CLASSES = [
  [Code.NotFound, "NOT_FOUND", NotFound],
  [Code.FailedPrecondition, "UNKNOWN_AGENT", FailedPrecondition],
  [Code.FailedPrecondition, "APPROVAL_CLOSED", FailedPrecondition],
  [Code.FailedPrecondition, "SECRET_NOT_KEPT", FailedPrecondition],
  [Code.PermissionDenied, "SPAWN_REFUSED", PermissionDenied],
  [Code.ResourceExhausted, "BUDGET_EXCEEDED", ResourceExhausted],
  [Code.Internal, "INTERNAL", Internal],
  [Code.NotFound, "A_REASON_OF_A_NEWER_MESH", NotFound],
] as const;

for (const [code, reason, kind] of CLASSES) {
  test(`${reason} is a ${kind.name}`, async (t) => {
    const url = await serve(t, (router) =>
      router.service(SessionService, {
        getSession: () => {
          throw refusal(code, reason);
        },
      }),
    );
    const error = await refused(meshAt(url, new FakeClock()).session(ID));
    assert.equal(error.constructor, kind);
    assert.equal(error.reason, reason);
  });
}

const BARE = [
  [Code.Unauthenticated, "no", "TOKEN_INVALID"],
  [Code.PermissionDenied, "no", "CALLER_NOT_ALLOWED"],
  [Code.ResourceExhausted, "Received message larger than max (9 vs. 8)", "MESSAGE_TOO_LARGE"],
  [Code.Unimplemented, "no", "UNKNOWN_RPC"],
] as const;

for (const [code, text, reason] of BARE) {
  test(`the bare status ${Code[code]} is ${reason}`, async (t) => {
    const url = await serve(t, (router) =>
      router.service(SessionService, {
        getSession: () => {
          throw new ConnectError(text, code);
        },
      }),
    );
    const error = await refused(meshAt(url, new FakeClock()).session(ID));
    assert.equal(error.reason, reason);
    assert.deepEqual(error.facts, { dependency: "session" });
    assert.equal(error.domain, "");
  });
}

test("an address without a server is unavailable, and the text says why", async () => {
  const error = await refused(meshAt("http://127.0.0.1:1", new FakeClock()).session(ID));
  assert(error instanceof Unavailable);
  assert.equal(error.reason, "DEPENDENCY_UNAVAILABLE");
  assert.match(error.message, /session does not answer: .*ECONNREFUSED/);
});

test("a request that is too large is refused before it is sent", async (t) => {
  const url = await serve(t, (router) => router.service(SessionService, {}));
  const mesh = connect({ url, token: "t", maxMessageBytes: 1000 });
  t.after(() => mesh.close());
  const error = await refused(mesh.spawn("x".repeat(2000)));
  assert.equal(error.reason, "MESSAGE_TOO_LARGE");
});

test("files that are larger than a request are refused by name", async (t) => {
  const targets = { session: "127.0.0.1:1" }; // None of the service that takes uploads.
  const mesh = connect({ targets, token: "t", maxMessageBytes: 1000 });
  t.after(() => mesh.close());
  const attachments = [
    { name: "a.txt", content: "a".repeat(600) },
    { name: "b.txt", content: "b".repeat(600) },
  ];
  const error = await refused(mesh.spawn("Read.", { attachments }));
  assert.deepEqual([error.reason, error.facts["file"]], ["MESSAGE_TOO_LARGE", "b.txt"]);
});

test("a refusal that counts the files gets the name of the file", async (t) => {
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      spawnSession: () => {
        throw refusal(Code.InvalidArgument, "ATTACHMENTS_INVALID_NAME", { facts: { index: "1" } });
      },
    }),
  );
  const attachments = ["a.txt", "../b.txt"].map((name) => ({ name, content: "x" }));
  const error = await refused(meshAt(url, new FakeClock()).spawn("Read.", { attachments }));
  assert.equal(error.facts["file"], "../b.txt");
});

test("an aborted call throws the reason of its signal", async (t) => {
  const stop = new AbortController();
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      spawnSession: async (_request, { signal }) => {
        stop.abort(new Error("enough"));
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        return {};
      },
    }),
  );
  const call = meshAt(url, new FakeClock()).spawn("Wait.", { signal: stop.signal });
  await assert.rejects(call, /^Error: enough$/);
});

test("a name that is no value of an option is a TypeError that lists them", async (t) => {
  const mesh = connect({ url: "http://127.0.0.1:1", token: "t" });
  t.after(() => mesh.close());
  // @ts-expect-error The compiler refuses it too.
  await assert.rejects(mesh.spawn("x", { mode: "FOREVER" }), /"FOREVER" is none of RUN, SESSION/);
});
