// Plugins and models of a tenant, and files outside of a session.

import assert from "node:assert/strict";
import { test } from "node:test";
import { durationFromMs, durationMs, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { Aborted } from "@spawnmesh/client";
import {
  AttachmentBlobService,
  type UploadFileRequest,
} from "#dist/gen/spawnmesh/attachment_blob/v1/attachment_blob_service_pb.js";
import { UploadState } from "#dist/gen/spawnmesh/attachment_blob/v1/upload_pb.js";
import { ThinkingLevel } from "#dist/gen/spawnmesh/content/v1/thinking_pb.js";
import { DeliveryDecision } from "#dist/gen/spawnmesh/hook/v1/delivery_pb.js";
import { HookKind } from "#dist/gen/spawnmesh/hook/v1/event_pb.js";
import {
  FailurePolicy,
  Grant,
  HookService,
  type ListDeliveriesRequest,
  type UpdatePluginRequest,
} from "#dist/gen/spawnmesh/hook/v1/hook_service_pb.js";
import { ModelRouterService } from "#dist/gen/spawnmesh/model_router/v1/model_router_service_pb.js";
import { ProviderKind } from "#dist/gen/spawnmesh/model_router/v1/routing_pb.js";
import { FakeClock, meshAt, refusal, serve } from "./server.js";

const TIME = new Date("2026-01-02T03:04:05.678Z");
const STORED = {
  name: "reviewer",
  endpoint: "grpc://127.0.0.1:9",
  hooks: [HookKind.BEFORE_AGENT_FINALIZE],
  priority: 5,
  timeout: durationFromMs(15_000),
  failurePolicy: FailurePolicy.CLOSED,
  grants: [Grant.FINALIZE_CONTROL],
  maxConcurrentCalls: 16,
  etag: "e1",
};
const DELIVERY = {
  plugin: "reviewer",
  hook: HookKind.BEFORE_AGENT_FINALIZE,
  startTime: timestampFromDate(TIME),
  latency: durationFromMs(12),
  decision: DeliveryDecision.REVISE,
  attempt: 1,
};

type Context = Parameters<typeof serve>[0];

async function hooked(t: Context) {
  const updates: UpdatePluginRequest[] = [];
  const lists: ListDeliveriesRequest[] = [];
  const url = await serve(t, (router) =>
    router.service(HookService, {
      updatePlugin: (request) => {
        updates.push(request);
        if (request.plugin?.etag === "old") throw refusal(Code.Aborted, "ETAG_DIFFERS");
        return { plugin: STORED, webhookSecret: request.plugin?.endpoint.startsWith("https") ? "s" : "" };
      },
      getPlugin: () => ({ plugin: STORED }),
      listPlugins: ({ pageToken }) => ({ plugins: [STORED], nextPageToken: pageToken ? "" : "2" }),
      pausePlugin: () => ({ plugin: { ...STORED, paused: true } }),
      resumePlugin: () => ({ plugin: STORED }),
      testPlugin: () => ({ deliveries: [DELIVERY] }),
      deletePlugin: () => ({}),
      listDeliveries: (request) => {
        lists.push(request);
        return { deliveries: [DELIVERY] };
      },
    }),
  );
  return { plugins: meshAt(url, new FakeClock()).plugins, updates, lists };
}

test("a plugin is registered with all of its fields, and read", async (t) => {
  const { plugins, updates } = await hooked(t);
  const { plugin, secret } = await plugins.register(
    {
      name: "reviewer",
      endpoint: "https://x.example/hook",
      hooks: ["BEFORE_SPAWN"],
      grants: ["CONVERSATION_ACCESS"],
      timeoutMs: 9000,
    },
    { allowUnreachable: true },
  );
  assert.equal(secret, "s");
  assert.deepEqual(plugin, {
    name: "reviewer",
    endpoint: "grpc://127.0.0.1:9",
    hooks: ["BEFORE_AGENT_FINALIZE"],
    priority: 5,
    timeoutMs: 15_000,
    failurePolicy: "CLOSED",
    grants: ["FINALIZE_CONTROL"],
    maxConcurrentCalls: 16,
    maxWaitMs: undefined,
    paused: false,
    bundled: false,
    etag: "e1",
  });
  const [{ plugin: sent, updateMask, allowMissing, allowUnreachable }] = updates as [UpdatePluginRequest];
  assert.deepEqual([sent?.hooks, sent?.grants], [[HookKind.BEFORE_SPAWN], [Grant.CONVERSATION_ACCESS]]);
  assert.equal(sent?.timeout && durationMs(sent.timeout), 9000);
  assert.deepEqual([updateMask?.paths, allowMissing, allowUnreachable], [["*"], true, true]);
  const names: string[] = [];
  for await (const { name } of plugins.list()) names.push(name);
  assert.deepEqual([names, (await plugins.get("reviewer")).priority], [["reviewer", "reviewer"], 5]);
});

test("a plugin is changed, paused, tested and deleted", async (t) => {
  const { plugins, updates, lists } = await hooked(t);
  assert.equal((await plugins.update({ name: "reviewer", priority: 7 }, ["priority"])).secret, undefined);
  assert.deepEqual([updates[0]?.updateMask?.paths, updates[0]?.allowMissing], [["priority"], false]);
  await assert.rejects(plugins.update({ name: "reviewer", etag: "old" }, ["priority"]), Aborted);
  assert.equal((await plugins.pause("reviewer")).paused, true);
  assert.equal((await plugins.resume("reviewer")).paused, false);
  const [tested] = await plugins.test("reviewer");
  assert.deepEqual(tested, {
    plugin: "reviewer",
    hook: "BEFORE_AGENT_FINALIZE",
    sessionId: undefined,
    runId: undefined,
    startTime: TIME,
    latencyMs: 12,
    decision: "REVISE",
    error: undefined,
    attempt: 1,
  });
  for await (const one of plugins.deliveries({ plugin: "reviewer", decision: "REVISE", since: TIME })) {
    assert.deepEqual(one, tested);
  }
  assert.deepEqual([lists[0]?.plugin, lists[0]?.decision], ["reviewer", DeliveryDecision.REVISE]);
  await plugins.delete("reviewer", { etag: "e1" });
});

test("models are listed with what they can do", async (t) => {
  const model = {
    model: "a/b", providerKind: ProviderKind.OPENAI, contextWindowTokenCount: 128_000n,
    maxOutputTokenCount: 4096n, vision: true, aliases: ["fast"], isPrimary: true,
    thinkingLevels: [ThinkingLevel.LOW],
  };
  const url = await serve(t, (router) =>
    router.service(ModelRouterService, { listModels: () => ({ models: [model] }) }),
  );
  for await (const found of meshAt(url, new FakeClock()).models.list()) {
    assert.deepEqual(found, {
      model: "a/b", providerKind: "OPENAI", contextWindowTokens: 128_000, maxOutputTokens: 4096, vision: true,
      tools: false, aliases: ["fast"], isPrimary: true, thinkingLevels: ["LOW"],
    });
  }
});

test("a file is uploaded outside of a spawn, and shared by an address", async (t) => {
  const sent: UploadFileRequest[] = [];
  const url = await serve(t, (router) =>
    router.service(AttachmentBlobService, {
      uploadFile: async (requests) => {
        for await (const request of requests) sent.push(request);
        const isDone = sent.some(({ message }) => message.case === "finish");
        return { upload: { state: isDone ? UploadState.COMPLETE : UploadState.OPEN } };
      },
      createDownloadUrl: ({ setId, name }) => ({
        url: `https://s3.example/${setId}/${name}`,
        expireTime: timestampFromDate(TIME),
      }),
    }),
  );
  const { files } = meshAt(url, new FakeClock());
  const { uploadId, name, sizeBytes } = await files.upload({ name: "note.txt", content: "hello" });
  assert.match(uploadId, /^upl_/);
  assert.deepEqual([name, sizeBytes], ["note.txt", 5]);
  const shared = { url: "https://s3.example/att_1/a.txt", expireTime: TIME };
  assert.deepEqual(await files.url("att_1", "a.txt"), shared);
});
