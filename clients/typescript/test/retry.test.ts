import assert from "node:assert/strict";
import { test } from "node:test";
import { Code, type ConnectError } from "@connectrpc/connect";
import { HookService } from "#dist/gen/spawnmesh/hook/v1/hook_service_pb.js";
import { SessionService } from "#dist/gen/spawnmesh/session/v1/session_service_pb.js";
import { meshError } from "#dist/errors.js";
import { DEFAULT_RETRY, Patience, pauseBefore, SYSTEM_CLOCK } from "#dist/retry.js";
import { FakeClock, meshAt, refusal, serve } from "./server.js";

const ID = "ses_00000000000000000000000000";
const UNAVAILABLE = refusal(Code.Unavailable, "DEPENDENCY_UNAVAILABLE");
const LIMITED = refusal(Code.ResourceExhausted, "RATE_LIMITED", { retryMs: 2000 });

test("a spawn is repeated with the same request id until it succeeds", async (t) => {
  const ids: string[] = [];
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      spawnSession: ({ requestId }) => {
        ids.push(requestId);
        if (ids.length < 4) throw UNAVAILABLE;
        return { session: { sessionId: ID } };
      },
    }),
  );
  const clock = new FakeClock();
  const session = await meshAt(url, clock).spawn("Say hello.");
  assert.equal(session.id, ID);
  assert.equal(ids.length, 4);
  assert.equal(new Set(ids).size, 1);
  assert.deepEqual(clock.pauses, [50, 100, 200]);
});

test("two messages without a request id have different ones", async (t) => {
  const ids: string[] = [];
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      getSession: () => ({ session: { sessionId: ID } }),
      sendMessage: ({ requestId }) => {
        ids.push(requestId);
        return { run: {} };
      },
    }),
  );
  const session = await meshAt(url, new FakeClock()).session(ID);
  await session.send("one");
  await session.send("two");
  await session.send("three", { requestId: "mine" });
  assert.equal(new Set(ids).size, 3);
  assert.equal(ids[2], "mine");
  assert.match(ids[0] ?? "", /^[0-9a-f]{32}$/);
});

async function calls(
  t: Parameters<typeof serve>[0],
  error: ConnectError,
  timeoutMs?: number,
): Promise<[number, FakeClock, unknown]> {
  let count = 0;
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      getSession: () => {
        count++;
        throw error;
      },
    }),
  );
  const clock = new FakeClock();
  const caught = await meshAt(url, clock, timeoutMs).session(ID).catch((error: unknown) => error);
  return [count, clock, caught];
}

test("a call gives up after its attempts, with the last error", async (t) => {
  const [count, clock, error] = await calls(t, UNAVAILABLE);
  assert.equal(count, DEFAULT_RETRY.maxAttempts);
  assert.deepEqual(clock.pauses, [50, 100, 200, 400]);
  assert.match(String(error), /the text of DEPENDENCY_UNAVAILABLE/);
});

test("a pause is as long as the service asks, and a random part more", async (t) => {
  const [, clock] = await calls(t, LIMITED);
  assert.deepEqual(clock.pauses, [2050, 2100, 2200, 2400]);
});

test("no pause goes beyond the deadline", async (t) => {
  const [count, clock, error] = await calls(t, LIMITED, 5_000);
  assert.equal(count, 3);
  assert.deepEqual(clock.pauses, [2050, 2100]);
  assert.match(String(error), /the text of RATE_LIMITED/);
});

const FINAL = [
  refusal(Code.NotFound, "NOT_FOUND"),
  refusal(Code.ResourceExhausted, "BUDGET_EXCEEDED"),
  refusal(Code.Internal, "INTERNAL"),
  refusal(Code.Unavailable, "PLUGIN_FAILED", { facts: { is_transient: "false" } }),
];

for (const error of FINAL) {
  test(`a call is not repeated after: ${error.rawMessage}`, async (t) => {
    assert.equal((await calls(t, error))[0], 1);
  });
}

test("a call that the contract does not call repeatable is made once", async (t) => {
  let count = 0;
  const url = await serve(t, (router) =>
    router.service(HookService, {
      testPlugin: () => {
        count++;
        throw UNAVAILABLE;
      },
    }),
  );
  const call = meshAt(url, new FakeClock()).services.hook.testPlugin({});
  await assert.rejects(call, /the text of DEPENDENCY_UNAVAILABLE/);
  assert.equal(count, 1);
});

test("the longest pause doubles up to its limit", () => {
  const longest = [1, 2, 3, 7, 20].map((count) => pauseBefore(count, undefined, DEFAULT_RETRY, 1));
  assert.deepEqual(longest, [100, 200, 400, 5000, 5000]);
});

test("a sleep ends when its signal is aborted", async () => {
  const stop = new AbortController();
  const sleep = SYSTEM_CLOCK.sleep(600_000, stop.signal);
  stop.abort(new Error("enough"));
  await assert.rejects(sleep, /enough/);
  await assert.rejects(SYSTEM_CLOCK.sleep(600_000, stop.signal), /enough/);
});

const SILENT = meshError({ reason: "DEPENDENCY_UNAVAILABLE", message: "silent", status: "UNAVAILABLE" });
const EXPIRED = meshError({ reason: "TOKEN_EXPIRED", message: "expired", status: "UNAUTHENTICATED" });

test("patience ends after its time without an answer", async () => {
  const clock = new FakeClock();
  const patience = new Patience(10_000, clock);
  const wait = async (): Promise<void> => {
    for (;;) {
      patience.begin();
      await patience.waitBeforeNext(SILENT);
    }
  };
  await assert.rejects(wait, /silent/);
  assert(clock.now() > 8_000 && clock.now() <= 10_000, `it waited ${clock.now()} ms`);
});

test("an answer renews the patience", async () => {
  const clock = new FakeClock();
  const patience = new Patience(5_000, clock);
  for (let count = 0; count < 20; count++) {
    patience.begin();
    if (count % 3 === 0) patience.answered();
    await patience.waitBeforeNext(SILENT);
  }
  assert.equal(clock.pauses.length, 20);
});

test("a token that expires during a stream is renewed, one that was expired is not", async () => {
  const clock = new FakeClock();
  const patience = new Patience(5_000, clock);
  patience.begin();
  await assert.rejects(patience.waitBeforeNext(EXPIRED), /expired/);
  clock.pass(3_600_000);
  await patience.waitBeforeNext(EXPIRED);
  assert.deepEqual(clock.pauses, []);
});
