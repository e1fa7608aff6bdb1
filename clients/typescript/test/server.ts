// A server of the real protocols, on a port of its own for each test.

import * as http from "node:http";
import * as http2 from "node:http2";
import type { AddressInfo } from "node:net";
import type { TestContext } from "node:test";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Code, ConnectRouter } from "@connectrpc/connect";
import { ConnectError } from "@connectrpc/connect";
import { connectNodeAdapter, createGrpcTransport } from "@connectrpc/connect-node";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "#dist/gen/google/rpc/error_details_pb.js";
import type { SessionEventSchema } from "#dist/gen/spawnmesh/session/v1/session_pb.js";
import {
  SessionService,
  type WatchSessionRequest,
  type WatchSessionResponseSchema,
} from "#dist/gen/spawnmesh/session/v1/session_service_pb.js";
import type { LocalFiles } from "#dist/attachments.js";
import { Mesh, settled } from "#dist/mesh.js";
import type { Clock } from "#dist/retry.js";
import type { Session } from "#dist/session.js";

/** Serve the routes by gRPC over HTTP/2 until the test ends. Return the URL. */
export async function serve(test: TestContext, routes: (router: ConnectRouter) => void): Promise<string> {
  return listening(test, http2.createServer(connectNodeAdapter({ routes })));
}

/** Serve the routes by gRPC-Web and Connect over HTTP/1.1 until the test ends. Return the URL. */
export async function serveWeb(test: TestContext, routes: (router: ConnectRouter) => void): Promise<string> {
  return listening(test, http.createServer(connectNodeAdapter({ routes })));
}

async function listening(test: TestContext, server: http.Server | http2.Http2Server): Promise<string> {
  const sessions = new Set<http2.ServerHttp2Session>();
  server.on("session", (session: http2.ServerHttp2Session) => sessions.add(session));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  test.after(() => {
    for (const session of sessions) session.destroy();
    server.close();
    if (server instanceof http.Server) server.closeAllConnections();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** A clock that does not wait. It notes the pauses. */
export class FakeClock implements Clock {
  readonly pauses: number[] = [];
  private time = 0;

  now(): number {
    return this.time;
  }
  random(): number {
    return 0.5;
  }
  async sleep(ms: number): Promise<void> {
    this.pauses.push(ms);
    this.time += ms;
  }
  pass(ms: number): void {
    this.time += ms;
  }
}

/** A mesh at the URL whose retries do not wait, with the files if there are some. */
export function meshAt(url: string, clock: Clock, timeoutMs = 30_000, files?: LocalFiles): Mesh {
  const transport = createGrpcTransport({ baseUrl: url });
  const hooks = { transportOf: () => transport, nameOf: () => "session", close: () => {} };
  const platform = { ...hooks, clock, canUpload: true, ...(files && { files }) };
  return new Mesh(platform, settled({ timeoutMs }, "token"));
}

export type Watched = MessageInitShape<typeof WatchSessionResponseSchema>;

/** An event of a session as a watch streams it. Its cursor is `c` and the number of the event. */
export function happened(value: MessageInitShape<typeof SessionEventSchema>, sessionId = ""): Watched {
  return { cursor: `c${value.number}`, sessionId, event: { case: "sessionEvent", value } };
}

/** A session whose watch the function serves. */
export async function watched(
  test: TestContext,
  sessionId: string,
  watch: (request: WatchSessionRequest, signal: AbortSignal) => AsyncGenerator<Watched>,
): Promise<Session> {
  const url = await serve(test, (router) =>
    router.service(SessionService, {
      getSession: () => ({ session: { sessionId } }),
      watchSession: (request, { signal }) => watch(request, signal),
    }),
  );
  return meshAt(url, new FakeClock()).session(sessionId);
}

/** A refusal as a service of the mesh sends it. */
export function refusal(
  code: Code,
  reason: string,
  more: { facts?: Record<string, string>; retryMs?: number; fields?: Record<string, string> } = {},
): ConnectError {
  const details: ConstructorParameters<typeof ConnectError>[3] = [
    {
      desc: ErrorInfoSchema,
      value: { reason, domain: "session.spawnmesh", metadata: more.facts ?? {} },
    },
  ];
  if (more.retryMs !== undefined) {
    const seconds = BigInt(Math.floor(more.retryMs / 1000));
    const retryDelay = { seconds, nanos: (more.retryMs % 1000) * 1e6 };
    details.push({ desc: RetryInfoSchema, value: { retryDelay } });
  }
  if (more.fields !== undefined) {
    const pairs = Object.entries(more.fields);
    const fieldViolations = pairs.map(([field, description]) => ({ field, description }));
    details.push({ desc: BadRequestSchema, value: { fieldViolations } });
  }
  return new ConnectError(`the text of ${reason}`, code, undefined, details);
}
