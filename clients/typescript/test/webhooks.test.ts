import assert from "node:assert/strict";
import { test } from "node:test";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, durationMs, timestampDate, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code, type ServiceImpl } from "@connectrpc/connect";
import type { Webhook, WebhookDelivery, WebhookEventType, Webhooks } from "@spawnmesh/client";
import {
  type WebhookDeliverySchema,
  WebhookDeliveryState,
  WebhookEventType as WireType,
  type WebhookSchema,
} from "#dist/gen/spawnmesh/hook/v1/webhook_pb.js";
import {
  type ListWebhookDeliveriesRequest,
  type ReplayWebhookDeliveriesRequest,
  type RotateWebhookSecretRequest,
  type UpdateWebhookRequest,
  WebhookService,
} from "#dist/gen/spawnmesh/hook/v1/webhook_service_pb.js";
import { FakeClock, meshAt, refusal, serve } from "./server.js";

const URL = "https://example.com/hooks";
const TIME = new Date("2026-01-02T03:04:05.678Z");
const SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const WIRE: MessageInitShape<typeof WebhookSchema> = {
  name: "a",
  url: URL,
  eventTypes: [WireType.RUN_ENDED],
  timeout: durationFromMs(15_000),
  createTime: timestampFromDate(TIME),
  etag: "e1",
};
const FAILED: MessageInitShape<typeof WebhookDeliverySchema> = {
  eventId: "evt_1",
  eventType: WireType.RUN_ENDED,
  sessionId: "ses_1",
  state: WebhookDeliveryState.FAILED,
  eventTime: timestampFromDate(TIME),
  attemptCount: 2,
  attempts: [{ latency: durationFromMs(42), error: "no connection" }, { statusCode: 200 }],
  bodyJson: "{}",
};

type Context = Parameters<typeof serve>[0];
type Implementation = Partial<ServiceImpl<typeof WebhookService>>;

async function webhooksOf(t: Context, implementation: Implementation): Promise<Webhooks> {
  const url = await serve(t, (router) => router.service(WebhookService, implementation));
  return meshAt(url, new FakeClock()).webhooks;
}

async function collected<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

/** The webhooks of a mesh that notes what is written. */
async function writing(t: Context): Promise<{ webhooks: Webhooks; requests: UpdateWebhookRequest[] }> {
  const requests: UpdateWebhookRequest[] = [];
  const webhooks = await webhooksOf(t, {
    updateWebhook: (request: UpdateWebhookRequest) => {
      requests.push(request);
      return { webhook: WIRE, secret: SECRET };
    },
  });
  return { webhooks, requests };
}

test("put replaces all of a webhook and returns its secret", async (t) => {
  const { webhooks, requests } = await writing(t);
  const options = { url: URL, eventTypes: ["run.ended", "budget.reached"] as const, timeoutMs: 2500 };
  const { webhook, secret } = await webhooks.put("a", options, { allowUnreachable: true });
  await webhooks.put("a", { url: URL }, { etag: "e1" });
  assert.equal(secret, SECRET);
  const expected: Webhook = {
    name: "a",
    url: URL,
    eventTypes: ["run.ended"],
    timeoutMs: 15_000,
    paused: false,
    pauseReason: undefined,
    failingSinceTime: undefined,
    previousSecretExpireTime: undefined,
    createTime: TIME,
    etag: "e1",
  };
  assert.deepEqual(webhook, expected);
  const [first, second] = requests;
  assert.ok(first?.webhook?.timeout && second?.webhook);
  assert.deepEqual(first.webhook.eventTypes, [WireType.RUN_ENDED, WireType.BUDGET_REACHED]);
  assert.equal(durationMs(first.webhook.timeout), 2500);
  assert.deepEqual([second.webhook.eventTypes, second.webhook.timeout], [[], undefined]);
  assert.deepEqual([first.allowUnreachable, second.allowUnreachable], [true, false]);
  assert.equal(second.webhook.etag, "e1");
  for (const one of requests) assert.deepEqual([one.updateMask?.paths, one.allowMissing], [["*"], true]);
});

test("update changes what is given alone", async (t) => {
  const { webhooks, requests } = await writing(t);
  await webhooks.update("a", { eventTypes: [] });
  await webhooks.update("a", { url: URL, timeoutMs: 1000 });
  await webhooks.update("a", { timeoutMs: null, eventTypes: undefined });
  assert.deepEqual(requests[0]?.updateMask?.paths, ["event_types"]);
  assert.deepEqual(requests[1]?.updateMask?.paths, ["url", "timeout"]);
  const timeouts = requests.map(({ webhook }) => webhook?.timeout && durationMs(webhook.timeout));
  assert.deepEqual(timeouts, [undefined, 1000, undefined]);
  assert.deepEqual(requests[2]?.updateMask?.paths, ["timeout"], "null is the default");
  assert.equal(requests[0]?.allowMissing, false);
  await assert.rejects(webhooks.update("a", {}), /name a field that changes: url, eventTypes, timeoutMs/);
});

test("an unknown type is refused with the known ones, before any call", async (t) => {
  const { webhooks, requests } = await writing(t);
  for (const type of ["run.end", "webhook.test", "toString"]) {
    const eventTypes = [type as WebhookEventType];
    const known = /none of session.started, session.ended/;
    await assert.rejects(webhooks.put("a", { url: URL, eventTypes }), known);
  }
  const all = Object.keys(WireType).filter((name) => Number.isNaN(Number(name)));
  const types = all.map((name) => name.toLowerCase().replace("_", "."));
  const known = types.filter((type) => !["unspecified", "webhook.test"].includes(type));
  await webhooks.put("a", { url: URL, eventTypes: known as WebhookEventType[] });
  assert.equal(requests[0]?.webhook?.eventTypes.length, all.length - 2);
});

test("webhooks are listed, read, paused, resumed and deleted", async (t) => {
  const paused = { ...WIRE, paused: true, pauseReason: "it answered 410", eventTypes: [99] };
  const deleted: string[] = [];
  const webhooks = await webhooksOf(t, {
    listWebhooks: ({ pageToken }: { pageToken: string }) =>
      pageToken === "" ? { webhooks: [WIRE], nextPageToken: "1" } : { webhooks: [{ name: "b" }] },
    getWebhook: () => ({ webhook: paused }),
    pauseWebhook: () => ({ webhook: paused }),
    resumeWebhook: () => ({ webhook: WIRE }),
    deleteWebhook: ({ name, etag }: { name: string; etag: string }) => {
      deleted.push(`${name} ${etag}`);
      return {};
    },
  });
  assert.deepEqual(
    (await collected(webhooks.list())).map((one) => one.name),
    ["a", "b"],
  );
  const found = await webhooks.get("a");
  assert.deepEqual([found.paused, found.pauseReason, found.eventTypes], [true, "it answered 410", ["99"]]);
  assert.equal((await webhooks.pause("a")).paused, true);
  assert.equal((await webhooks.resume("a")).paused, false);
  await webhooks.delete("a");
  await webhooks.delete("a", { etag: "e1" });
  assert.deepEqual(deleted, ["a ", "a e1"]);
});

test("a rotation has a request id, and says how long the previous secret signs", async (t) => {
  const requests: RotateWebhookSecretRequest[] = [];
  const webhooks = await webhooksOf(t, {
    rotateWebhookSecret: (request: RotateWebhookSecretRequest) => {
      requests.push(request);
      return { webhook: { ...WIRE, previousSecretExpireTime: timestampFromDate(TIME) }, secret: SECRET };
    },
  });
  const { webhook, secret } = await webhooks.rotateSecret("a", { requestId: "r1", keepPreviousMs: 0 });
  await webhooks.rotateSecret("a");
  assert.deepEqual([webhook.previousSecretExpireTime, secret], [TIME, SECRET]);
  const [first, second] = requests;
  assert.ok(first?.keepPrevious && second);
  assert.deepEqual([first.requestId, durationMs(first.keepPrevious)], ["r1", 0]);
  assert.deepEqual([second.requestId.length, second.keepPrevious], [32, undefined]);
});

test("deliveries are read page by page, with the conditions of the first one", async (t) => {
  const requests: ListWebhookDeliveriesRequest[] = [];
  const webhooks = await webhooksOf(t, {
    listWebhookDeliveries: (request: ListWebhookDeliveriesRequest) => {
      requests.push(request);
      return request.pageToken === "" ? { nextPageToken: "1" } : { deliveries: [FAILED] };
    },
    testWebhook: () => ({ delivery: { ...FAILED, eventType: WireType.WEBHOOK_TEST } }),
  });
  const options = { state: "FAILED", eventType: "webhook.test", sessionId: "ses_1" } as const;
  const found = await collected(webhooks.deliveries("a", { ...options, since: TIME, before: TIME }));
  const expected: WebhookDelivery = {
    eventId: "evt_1",
    eventType: "run.ended",
    sessionId: "ses_1",
    runId: undefined,
    state: "FAILED",
    eventTime: TIME,
    queueTime: undefined,
    endTime: undefined,
    attemptCount: 2,
    attempts: [
      { startTime: undefined, latencyMs: 42, statusCode: undefined, error: "no connection" },
      { startTime: undefined, latencyMs: undefined, statusCode: 200, error: undefined },
    ],
    bodyJson: "{}",
  };
  assert.deepEqual(found, [expected]);
  assert.equal((await webhooks.test("a")).eventType, "webhook.test");
  for (const { name, state, eventType, sessionId, startTime, endTime } of requests) {
    assert.ok(startTime && endTime);
    assert.deepEqual([timestampDate(startTime), timestampDate(endTime)], [TIME, TIME]);
    assert.deepEqual([name, state, sessionId], ["a", WebhookDeliveryState.FAILED, "ses_1"]);
    assert.equal(eventType, WireType.WEBHOOK_TEST);
  }
  assert.equal(requests.length, 2);
});

test("a replay goes on while there are more messages", async (t) => {
  const requests: ReplayWebhookDeliveriesRequest[] = [];
  const webhooks = await webhooksOf(t, {
    replayWebhookDeliveries: (request: ReplayWebhookDeliveriesRequest) => {
      requests.push(request);
      return { replayedCount: 1000, isPartial: requests.length < 3 };
    },
  });
  assert.equal(await webhooks.replayFailed("a", TIME), 3000);
  assert.equal(await webhooks.replay("a", ["evt_1"]), 1000);
  const cases = requests.map((request) => request.messages.case);
  assert.deepEqual(cases, [...Array(3).fill("failedSinceTime"), "events"]);
});

test("a refusal has its reason", async (t) => {
  const webhooks = await webhooksOf(t, {
    updateWebhook: () => {
      throw refusal(Code.FailedPrecondition, "ENDPOINT_NOT_ALLOWED", {});
    },
  });
  const expected = { name: "FailedPrecondition", reason: "ENDPOINT_NOT_ALLOWED" };
  await assert.rejects(webhooks.put("a", { url: URL }), expected);
});
