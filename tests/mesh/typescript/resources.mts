// Works with operations, searches, models, plugins and files, and prints what it found as JSON.
import {
  connect,
  FailedPrecondition,
  InvalidArgument,
  MeshError,
  NotFound,
  type SearchHit,
  Unimplemented,
} from "@spawnmesh/client";

const { TARGETS, TOKEN } = process.env as Record<string, string>;
const mesh = connect({ targets: JSON.parse(TARGETS!), token: TOKEN! });

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

async function refused(call: Promise<unknown>): Promise<MeshError> {
  return call.then(
    () => Promise.reject(new Error("the call is not refused")),
    (error: unknown) => (error instanceof MeshError ? error : Promise.reject(error)),
  );
}

const session = await mesh.spawn("The pump P-17 is repaired.", { mode: "SESSION" });
const { text } = await session.result();
const shown = ({ seq, kind, snippet }: SearchHit) => [seq, kind, snippet.includes("P-17")];
const search = {
  words: (await all(session.search("pump repaired"))).map(shown),
  pattern: (await all(mesh.search(session.id, { pattern: "P-\\d+" }, { roles: ["USER"] }))).map(shown),
  limited: (await all(session.search("pump", { limit: 1 }))).length,
  none: (await all(session.search("turbine"))).length,
  refused: (await refused(all(session.search("?")))) instanceof InvalidArgument,
};

const started = await mesh.operations.recount(session.id, { dryRun: true, requestId: "r" });
const again = await mesh.operations.recount(session.id, { dryRun: true, requestId: "r" });
const steps: number[] = [];
const counts = await started.result({ timeoutMs: 60_000, onProgress: ({ doneCount }) => steps.push(doneCount) });
const tiered = await (await mesh.operations.tier(session.id, "DRY_RUN")).result({ timeoutMs: 60_000 });
const listed = await all(mesh.operations.list({ isDone: true }));
const isDisabled = await refused(mesh.operations.tier(session.id, "APPLY"));
await started.delete();
const missing = "services/transcript/operations/opr_00000000000000000000000000";
const operations = {
  isSame: started.name === again.name,
  request: started.view.request?.type,
  examined: [counts.examinedEntries, tiered.examinedEntries, steps.at(-1), counts.recountedEntries],
  listed: listed.map(({ view }) => [view.method, view.isDone, view.request?.type, view.response?.type]),
  disabled: [isDisabled instanceof FailedPrecondition, isDisabled.reason],
  deleted: (await refused(started.refresh())) instanceof NotFound,
  missing: (await refused(mesh.operations.get(missing))) instanceof NotFound,
  elsewhere: (await refused(all(mesh.operations.list({ service: "hook" })))) instanceof Unimplemented,
};

const { plugin } = await mesh.plugins.register(
  { name: "later", endpoint: "grpc://127.0.0.1:9", hooks: ["LLM_OUTPUT"], grants: ["CONVERSATION_ACCESS"] },
  { allowUnreachable: true },
);
const changed = await mesh.plugins.update({ name: "later", priority: 7 }, ["priority"]);
const paused = await mesh.plugins.pause("later");
const plugins = [plugin.hooks, plugin.grants, changed.plugin.priority, paused.paused];
await mesh.plugins.delete("later");

const note = { name: "note.txt", content: "hello".repeat(1000) };
const uploads = [await mesh.files.upload(note), await mesh.files.upload(note)];
const run = await mesh.run("Say hello.", { waitMs: 60_000 });
const children = await all(session.children());
const child = await mesh.spawn("Say hello.", { parentSessionId: session.id });
console.log(
  JSON.stringify({
    answered: text.includes("P-17"),
    search,
    operations,
    plugins: [...plugins, (await all(mesh.plugins.list())).length],
    models: (await all(mesh.models.list())).filter(({ isPrimary }) => isPrimary).length,
    uploads: [uploads[0]?.uploadId === uploads[1]?.uploadId, uploads[0]?.sizeBytes],
    run: [run.run.state, run.text.endsWith("Say hello.")],
    children: [children.length, (await all(session.children())).map(({ id }) => id === child.id)],
  }),
);
mesh.close();
