// Creates, changes and deletes a tenant as an operator, spends something in it, and prints what it found.
import { setTimeout as sleep } from "node:timers/promises";
import { connect, MeshError, NotFound } from "@spawnmesh/client";

const { TARGETS, TOKEN, TENANT, CLIENT_TOKEN } = process.env as Record<string, string>;
const targets = JSON.parse(TARGETS!);
const operator = connect({ targets, token: TOKEN! });
const client = connect({ targets, token: CLIENT_TOKEN! });

async function reason(call: Promise<unknown>): Promise<string> {
  return call.then(
    () => "none",
    (error: unknown) => (error instanceof MeshError ? error.reason : Promise.reject(error)),
  );
}

const missing = await operator.tenants.get(TENANT!).catch((error: unknown) => error instanceof NotFound);
const created = await operator.tenants.create(TENANT!, { displayName: "A", settings: { maxSpawnDepth: 2 } });
const change = { settings: { maxSpawnDepth: 3 }, etag: created.etag };
const updated = await operator.tenants.update(TENANT!, change, ["settings.max_spawn_depth"]);
const stale = await reason(operator.tenants.update(TENANT!, { ...change, settings: {} }, ["settings"]));
const unknownField = await reason(operator.tenants.update(TENANT!, {}, ["settings.nothing"]));
const settings = await operator.tenants.settings(TENANT!);
let isListed = false;
for await (const one of operator.tenants.list()) isListed ||= one.tenantId === TENANT;

const run = await client.run("Say hello.", { waitMs: 60_000 });
const spend = () => client.models.spend({ groupBy: ["AGENT", "MODEL"] });
let spent = await spend();
while (spent.rows.length === 0) {
  await sleep(100); // The router writes what was spent some seconds later.
  spent = await spend();
}
const [row] = spent.rows;

const started = await operator.tenants.delete(TENANT!, { requestId: "r" });
const again = await operator.tenants.delete(TENANT!, { requestId: "r" });
const refused = started.isDone ? "OPERATION_NOT_CANCELLABLE" : await reason(started.cancel());
const { tenant } = await started.result({ timeoutMs: 180_000 });
const listed: string[] = [];
for await (const one of operator.operations.list({ service: "session", tenantId: TENANT! })) {
  listed.push(one.view.request?.type ?? "");
}
console.log(
  JSON.stringify({
    missing,
    created: [created.state, created.displayName, created.settingsVersion],
    updated: [updated.settingsVersion, settings?.maxSpawnDepth],
    refusals: [stale, unknownField, refused],
    isListed,
    spent: [run.run.state, row?.agentId, (row?.calls ?? 0) > 0, (row?.cost ?? 0) > 0, spent.currency !== ""],
    isSame: started.name === again.name,
    deleted: [tenant.state, tenant.deletion?.deletedSessions, tenant.deletion?.deletedTranscripts],
    listed,
  }),
);
operator.close();
client.close();
