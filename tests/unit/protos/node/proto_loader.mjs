// Prints what @grpc/proto-loader reads from a folder of .proto files: its services, a policy and a
// request.
import { readdirSync } from "node:fs";
import { loadSync } from "@grpc/proto-loader";

const folder = process.argv[2];
const files = readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(".proto"));
const loaded = loadSync(files, { includeDirs: [folder], keepCase: true });
const services = Object.entries(loaded).filter(([, value]) => !("format" in value));
const spawn = loaded["spawnmesh.session.v1.SessionService"].SpawnSession;
const request = spawn.requestSerialize({ request_id: "r-1", task: "Say hello.", run_timeout: { seconds: 60 } });
console.log(
  JSON.stringify({
    services: services.map(([name]) => name),
    callers: spawn.options["(spawnmesh.policy.v1.call_policy)"].callers,
    request: request.toString("base64"),
  }),
);
