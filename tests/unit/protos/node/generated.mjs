// Prints what the code of protoc-gen-es says: its services, a policy, a rule and a request.
import { readdirSync } from "node:fs";
import { create, getOption, toBinary } from "@bufbuild/protobuf";
import { field } from "./gen/buf/validate/validate_pb.js";
import { Caller, call_policy } from "./gen/spawnmesh/policy/v1/policy_pb.js";
import { SessionService, SpawnSessionRequestSchema } from "./gen/spawnmesh/session/v1/session_service_pb.js";

const modules = readdirSync("gen", { recursive: true }).filter((name) => name.endsWith("_pb.js"));
const loaded = await Promise.all(modules.map((name) => import(`./gen/${name}`)));
const services = loaded.flatMap(Object.values).filter((value) => value?.kind === "service");
const request = create(SpawnSessionRequestSchema, {
  requestId: "r-1",
  task: "Say hello.",
  runTimeout: { seconds: 60n },
});
const policy = getOption(SessionService.method.spawnSession, call_policy);
const rule = getOption(SpawnSessionRequestSchema.field.task, field);
console.log(
  JSON.stringify({
    services: services.map((service) => service.typeName),
    callers: policy.callers.map((caller) => `CALLER_${Caller[caller]}`),
    maxBytes: Number(rule.type.value.maxBytes),
    request: Buffer.from(toBinary(SpawnSessionRequestSchema, request)).toString("base64"),
  }),
);
