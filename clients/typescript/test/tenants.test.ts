// Tenants for operators, the operation of a deletion, and the spending of a tenant.

import assert from "node:assert/strict";
import { test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { anyPack, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { FailedPrecondition } from "@spawnmesh/client";
import type { ListSpendRequest } from "#dist/gen/spawnmesh/model_router/v1/model_router_service_pb.js";
import { ModelRouterService } from "#dist/gen/spawnmesh/model_router/v1/model_router_service_pb.js";
import { SpendDimension } from "#dist/gen/spawnmesh/model_router/v1/spend_pb.js";
import {
  OperationMetadataSchema,
  OperationService,
} from "#dist/gen/spawnmesh/operations/v1/operation_service_pb.js";
import { TenantState } from "#dist/gen/spawnmesh/session/v1/tenant_pb.js";
import {
  type DeleteTenantRequest,
  DeleteTenantRequestSchema,
  DeleteTenantResponseSchema,
  TenantService,
  type UpdateTenantRequest,
} from "#dist/gen/spawnmesh/session/v1/tenant_service_pb.js";
import { FakeClock, meshAt, refusal, serve } from "./server.js";

const NAME = "services/session/tenants/acme/operations/opr_00000000000000000000000000";
const TIME = new Date("2026-01-02T00:00:00Z");

test("a tenant is changed by its fields and deleted by an operation", async (t) => {
  const updates: UpdateTenantRequest[] = [];
  const deletions: DeleteTenantRequest[] = [];
  const tenant = { tenantId: "acme", state: TenantState.ACTIVE, settingsVersion: 2n, etag: "e" };
  const deleted = {
    tenantId: "acme",
    state: TenantState.DELETED,
    deletion: { requestTime: timestampFromDate(TIME), deletedSessionCount: 7n },
  };
  const metadata = (isDone: boolean) =>
    anyPack(
      OperationMetadataSchema,
      create(OperationMetadataSchema, {
        method: "DeleteTenant",
        doneCount: isDone ? 7n : 0n,
        request: anyPack(
          DeleteTenantRequestSchema,
          create(DeleteTenantRequestSchema, { tenantId: "acme", requestId: "r" }),
        ),
      }),
    );
  const done = create(DeleteTenantResponseSchema, { tenant: deleted });
  const response = anyPack(DeleteTenantResponseSchema, done);
  const url = await serve(t, (router) => {
    router.service(TenantService, {
      updateTenant: (request) => {
        updates.push(request);
        return { tenant };
      },
      deleteTenant: (request) => {
        deletions.push(request);
        return { name: NAME, metadata: metadata(false) };
      },
      listTenants: ({ pageToken }) =>
        pageToken === "" ? { tenants: [tenant], nextPageToken: "next" } : { tenants: [deleted] },
    });
    router.service(OperationService, {
      waitOperation: () => ({
        name: NAME,
        done: true,
        metadata: metadata(true),
        result: { case: "response", value: response },
      }),
      cancelOperation: () => {
        throw refusal(Code.FailedPrecondition, "OPERATION_NOT_CANCELLABLE");
      },
    });
  });
  const mesh = meshAt(url, new FakeClock());
  const change = { settings: { maxSpawnDepth: 3 }, etag: "e" };
  assert.equal((await mesh.tenants.update("acme", change, ["settings.max_spawn_depth"])).settingsVersion, 2);
  assert.deepEqual(updates[0]?.updateMask?.paths, ["settings.max_spawn_depth"]);
  assert.deepEqual([updates[0]?.tenant?.settings?.maxSpawnDepth, updates[0]?.tenant?.etag], [3, "e"]);
  const states: string[] = [];
  for await (const one of mesh.tenants.list()) states.push(one.state);
  assert.deepEqual(states, ["ACTIVE", "DELETED"]);

  const operation = await mesh.tenants.delete("acme", { requestId: "r" });
  assert.deepEqual([deletions[0]?.tenantId, deletions[0]?.requestId], ["acme", "r"]);
  assert.deepEqual(operation.view.request, { type: "DeleteTenant", tenantId: "acme" });
  assert.equal(operation.view.isCancellable, false);
  await assert.rejects(operation.cancel(), (error: unknown) => {
    assert.ok(error instanceof FailedPrecondition);
    assert.equal(error.reason, "OPERATION_NOT_CANCELLABLE");
    return true;
  });
  const result = await operation.result();
  assert.equal(result.type, "DeleteTenant");
  assert.deepEqual([result.tenant.state, result.tenant.deletion?.deletedSessions], ["DELETED", 7]);
});

test("the spending has the rows of all pages and the budget of the day", async (t) => {
  const asked: ListSpendRequest[] = [];
  const url = await serve(t, (router) => {
    router.service(ModelRouterService, {
      listSpend: (request) => {
        asked.push(request);
        const row = { dayTime: timestampFromDate(TIME), agentId: "a", callCount: 2n, costMicros: 1_500_000n };
        if (request.pageToken === "") return { rows: [row], nextPageToken: "next", currency: "USD" };
        const renewTime = timestampFromDate(TIME);
        const budget = { limitMicros: 3_000_000n, spentMicros: 1_500_000n, renewTime };
        return { rows: [{ model: "p/m" }], budget, currency: "USD" };
      },
    });
  });
  const mesh = meshAt(url, new FakeClock());
  const found = await mesh.models.spend({ start: TIME, groupBy: ["DAY", "AGENT"] });
  assert.deepEqual(asked[1]?.groupBy, [SpendDimension.DAY, SpendDimension.AGENT]);
  assert.deepEqual(asked.map(({ pageToken }) => pageToken), ["", "next"]);
  const rows = found.rows.map(({ day, agentId, model, calls, cost }) => [day, agentId, model, calls, cost]);
  assert.deepEqual(rows, [
    [TIME, "a", "", 2, 1.5],
    [undefined, "", "p/m", 0, 0],
  ]);
  assert.deepEqual(found.budget, { limit: 3, spent: 1.5, reserved: 0, renewTime: TIME });
  assert.equal(found.currency, "USD");
  await assert.rejects(mesh.models.spend({ groupBy: ["HOUR" as "DAY"] }), TypeError);
});
