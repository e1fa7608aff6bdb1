// What a user of the TypeScript client does. Prints one JSON object.
import { writeFile } from "node:fs/promises";
import {
  connect,
  FailedPrecondition,
  MeshError,
  NotFound,
  RunFailed,
  type Session,
  type SessionEvent,
  Unauthenticated,
} from "@spawnmesh/client";
import { SessionState } from "@spawnmesh/client/gen/spawnmesh/session/v1/session_pb.js";
import { SessionService } from "@spawnmesh/client/gen/spawnmesh/session/v1/session_service_pb.js";

const { SESSION, TRANSCRIPT, TOKEN } = process.env as Record<string, string>;
const targets = { session: SESSION!, transcript: TRANSCRIPT! };
const mesh = connect({ targets, token: () => TOKEN! });

async function caught(call: Promise<unknown>): Promise<unknown> {
  return call.then(
    () => "the call succeeded",
    (error: unknown) => error,
  );
}

async function listed<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

const agent = await mesh.agents.put({ agentId: "reader", systemPrompt: "Read.", tools: ["read_file"] });
const agents = (await listed(mesh.agents.list())).map((one) => one.agentId);

await writeFile("notes.txt", "from a path");
const attachments = [{ name: "report.md", content: new TextEncoder().encode("hello") }, { path: "notes.txt" }];
const requestId = "program-1";
const spawned: Session = await mesh.spawn("What is in the files?", { attachments, requestId, metadata: { ticket: "17" } });
const again = await mesh.spawn("What is in the files?", { attachments, requestId, metadata: { ticket: "17" } });
const events: SessionEvent[] = await listed(spawned.events());
const result = await spawned.result({ timeoutMs: 60_000 });
const entries = await listed(spawned.transcript());
const asked = entries.map(({ body }) => (body.type === "message" ? body.role : body.type));

const failing = await mesh.spawn("Count.", { model: "unknown/model" });
const failure = await caught(failing.result({ timeoutMs: 60_000 }));
const unknownAgent = await caught(mesh.spawn("Hello.", { agentId: "nobody" }));
const unknownSession = await caught(mesh.session(`ses_${"0".repeat(26)}`));
const malformed = await caught(mesh.spawn(" "));
const stranger = connect({ targets, token: "no.token" });
const badToken = await caught(stranger.spawn("Hello."));

const talk = await mesh.spawn("Say hello.", { mode: "SESSION", agentId: "reader" });
await talk.result({ timeoutMs: 60_000 });
const sent = await talk.send("And again.");
const second = await talk.result({ timeoutMs: 60_000 });
const ended = await talk.interrupt({ runId: sent.runId });
const third = await talk.interrupt({ text: "And once more." });
const redirected = await talk.result({ timeoutMs: 60_000 });
await talk.kill();
const closed = (await talk.refresh()).state;
const archived = await talk.archive();
const open = (await listed(mesh.sessions({ pageSize: 1 }))).map((session) => session.id);
const ticket = (await listed(mesh.sessions({ filter: 'metadata.ticket = "17"' }))).map((session) => session.id);
const everything = (await listed(mesh.sessions({ includeArchived: true }))).map((session) => session.id);
const deleted = await talk.delete();
const wire = await mesh.services.client(SessionService, "session").getSession({ sessionId: spawned.id });
await mesh.agents.delete(agent.agentId);

console.log(
  JSON.stringify({
    agents,
    spawned: [spawned.id === again.id, spawned.view.metadata, spawned.view.receipt?.files.map((file) => file.name)],
    created: spawned.view.createTime instanceof Date,
    events: events.map((event) => [event.number, event.type, event.runState ?? null]),
    state: spawned.state,
    text: result.text,
    usage: result.run.usage.outputTokens > 0,
    asked,
    failure: failure instanceof RunFailed && [failure.reason, failure.state, failure.traceId === failing.traceId],
    unknownAgent: unknownAgent instanceof FailedPrecondition && [unknownAgent.reason, unknownAgent.domain],
    unknownSession: unknownSession instanceof NotFound && unknownSession.facts["resource"],
    malformed: malformed instanceof MeshError && malformed.violations.map((violation) => violation.field),
    badToken: badToken instanceof Unauthenticated && badToken.reason,
    talked: [sent.runId === second.run.runId, closed, archived, deleted],
    interrupted: [ended?.state, ended?.interruptTime ?? null, third?.runId === redirected.run.runId],
    archivedIsHidden: [open.includes(talk.id), everything.includes(talk.id), open.includes(spawned.id)],
    ticket: ticket.length === 1 && ticket[0] === spawned.id,
    agent: [agent.version, agent.etag !== ""],
    wire: wire.session?.state === SessionState.CLOSED,
    left: (await listed(mesh.agents.list())).map((one) => one.agentId),
  }),
);
