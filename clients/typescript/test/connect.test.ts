import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { inspect } from "node:util";
import { connect } from "@spawnmesh/client";
import { connect as connectWeb } from "@spawnmesh/client/web";
import { AuditService } from "#dist/gen/spawnmesh/audit/v1/audit_service_pb.js";
import {
  SessionService,
  type SpawnSessionRequest,
} from "#dist/gen/spawnmesh/session/v1/session_service_pb.js";
import { happened, serve, serveWeb } from "./server.js";

const ID = "ses_00000000000000000000000000";

const MALFORMED = [
  [{ token: "t" }, /no address/],
  [{ url: "http://127.0.0.1:1" }, /no token/],
  [{ token: "t", url: "ftp://127.0.0.1" }, /url is "ftp:\/\/127.0.0.1"/],
  [{ token: "t", targets: { session: "no port or host:" } }, /targets.session is/],
  [{ token: "t", url: "http://127.0.0.1:1", targets: {} }, /not both/],
  [{ token: "t", url: "http://127.0.0.1:1", tls: {} }, /begins with http:/],
] as const;

for (const [options, text] of MALFORMED) {
  test(`connect refuses ${JSON.stringify(options)}`, () => {
    assert.throws(() => connect(options), { name: "TypeError", message: text });
  });
}

test("a mesh and its sessions show no token", async (t) => {
  const url = await serve(t, (router) =>
    router.service(SessionService, { getSession: () => ({ session: { sessionId: ID } }) }),
  );
  const mesh = connect({ url, token: "secret-token" });
  t.after(() => mesh.close());
  const session = await mesh.session(ID);
  const shown = inspect([mesh, session], { depth: 20, showHidden: true }) + JSON.stringify([mesh, session]);
  assert(shown.includes(ID));
  assert(!shown.includes("secret-token"), shown);
});

test("a service whose address was not passed is named", () => {
  const mesh = connect({ token: "t", targets: { session: "127.0.0.1:1" } });
  assert.throws(() => mesh.services.transcript, /no address of transcript/);
});

test("address and token come from the environment", async (t) => {
  const tokens: unknown[] = [];
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      getSession: (_request, { requestHeader }) => {
        tokens.push(requestHeader.get("authorization"));
        return { session: { sessionId: ID } };
      },
    }),
  );
  process.env["SPAWNMESH_URL"] = url;
  process.env["SPAWNMESH_TOKEN"] = "from-environment";
  t.after(() => {
    delete process.env["SPAWNMESH_URL"];
    delete process.env["SPAWNMESH_TOKEN"];
  });
  const mesh = connect();
  t.after(() => mesh.close());
  assert.equal((await mesh.session(ID)).id, ID);
  assert.deepEqual(tokens, ["Bearer from-environment"]);
});

test("a call names its service, for a gateway that has the address of all", async (t) => {
  const names: unknown[] = [];
  const url = await serve(t, (router) =>
    router.service(AuditService, {
      listAuditEvents: (_request, { requestHeader }) => {
        names.push(requestHeader.get("spawnmesh-service"));
        return {};
      },
    }),
  );
  const mesh = connect({ url, token: "t" });
  t.after(() => mesh.close());
  await mesh.services.client(AuditService, "hook").listAuditEvents({});
  await mesh.services.client(AuditService, "transcript").listAuditEvents({});
  assert.deepEqual(names, ["hook", "transcript"]);
});

test("a function gives the token of each call", async (t) => {
  const tokens: unknown[] = [];
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      getSession: (_request, { requestHeader }) => {
        tokens.push(requestHeader.get("authorization"));
        return { session: { sessionId: ID } };
      },
    }),
  );
  let count = 0;
  const mesh = connect({ targets: { session: url }, token: async () => `token-${++count}` });
  t.after(() => mesh.close());
  await mesh.session(ID);
  await mesh.session(ID);
  assert.deepEqual(tokens, ["Bearer token-1", "Bearer token-2"]);
});

test("files are attached by content and by path", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "spawnmesh-"));
  t.after(() => rm(folder, { recursive: true }));
  await writeFile(join(folder, "c.txt"), "from a path");
  const requests: SpawnSessionRequest[] = [];
  const url = await serve(t, (router) =>
    router.service(SessionService, {
      spawnSession: (request) => {
        requests.push(request);
        return { session: { sessionId: ID } };
      },
    }),
  );
  const mesh = connect({ url, token: "t" });
  t.after(() => mesh.close());
  await mesh.spawn("Read.", {
    attachments: [
      { name: "a.bin", content: new Uint8Array([0, 255]), mimeType: "image/png" },
      { name: "empty.txt", content: "" },
      { path: join(folder, "c.txt") },
      { path: join(folder, "c.txt"), name: "d.txt" },
    ],
  });
  const sent = requests[0]?.attachments ?? [];
  assert.deepEqual(
    sent.map(({ name, source, mimeType }) => [
      name,
      source.case === "data" && Buffer.from(source.value).toString("latin1"),
      mimeType,
    ]),
    [
      ["a.bin", "\u0000\u00ff", "image/png"],
      ["empty.txt", "", ""],
      ["c.txt", "from a path", ""],
      ["d.txt", "from a path", ""],
    ],
  );
  const missing = mesh.spawn("Read.", { attachments: [{ path: join(folder, "missing") }] });
  await assert.rejects(missing, { code: "ENOENT" });
  assert.equal(requests.length, 1);
});

for (const [protocol, type] of [
  ["grpc-web", "application/grpc-web+proto"],
  ["connect", "application/proto"],
] as const) {
  test(`the web entry calls and watches by ${protocol}`, async (t) => {
    const url = await serveWeb(t, (router) =>
      router.service(SessionService, {
        getSession: (_request, { requestHeader }) => {
          assert.equal(requestHeader.get("content-type"), type);
          return { session: { sessionId: ID } };
        },
        watchSession: async function* () {
          yield happened({ number: 1n });
          yield happened({ number: 2n });
        },
      }),
    );
    const mesh = connectWeb({ url, token: "t", protocol });
    const session = await mesh.session(ID);
    const numbers: number[] = [];
    for await (const event of session.events()) numbers.push(event.number);
    assert.deepEqual(numbers, [1, 2]);
    const byPath = mesh.spawn("Read.", { attachments: [{ path: "a.txt" }] });
    await assert.rejects(byPath, /a browser reads no paths/);
  });
}
