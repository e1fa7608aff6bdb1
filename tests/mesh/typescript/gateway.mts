// Calls the mesh through its gateway, by gRPC and by gRPC-Web. Prints one JSON object.
import { connect, type Mesh, MeshError } from "@spawnmesh/client";
import { connect as connectWeb } from "@spawnmesh/client/web";
import { AuditService } from "@spawnmesh/client/gen/spawnmesh/audit/v1/audit_service_pb.js";

const { GATEWAY, TOKEN } = process.env as Record<string, string>;
const url = GATEWAY!;

async function refused(call: Promise<unknown>): Promise<MeshError> {
  const error = await call.then(
    () => "the call succeeded",
    (error: unknown) => error,
  );
  if (error instanceof MeshError) return error;
  throw error;
}

async function used(mesh: Mesh, stranger: Mesh): Promise<unknown> {
  const session = await mesh.spawn("Say hello.", { attachments: [{ name: "a.txt", content: "hello" }] });
  let last = "";
  for await (const event of session.events()) last = event.type;
  let text = "";
  const answers: string[] = [];
  for await (const event of session.live()) {
    if (event.type === "text") text = (event.beginsDraft ? "" : text) + event.text;
    if (event.type !== "entry" || event.entry.body.type !== "message") continue;
    if (event.entry.body.role !== "ASSISTANT") continue;
    answers.push(event.completesDraft ? text : event.entry.body.text);
  }
  const { run, text: answer } = await session.result({ timeoutMs: 60_000 });
  const roles = new Set<string>();
  for await (const { body } of session.transcript()) if (body.type === "message") roles.add(body.role);
  const audited = await mesh.services.client(AuditService, "transcript").listAuditEvents({});
  const unknown = await refused(mesh.spawn("Hello.", { agentId: "nobody" }));
  const denied = await refused(stranger.session(session.id));
  return {
    last,
    state: run.state,
    roles: ["USER", "ASSISTANT"].filter((role) => roles.has(role)),
    answered: answers.at(-1) === answer,
    audited: Array.isArray(audited.events),
    refused: [unknown.name, unknown.reason, unknown.domain],
    token: [denied.name, denied.reason],
  };
}

const grpc = await used(connect({ url, token: TOKEN! }), connect({ url, token: "no.token" }));
const web = await used(connectWeb({ url, token: TOKEN! }), connectWeb({ url, token: "no.token" }));
console.log(JSON.stringify({ grpc, web }));
