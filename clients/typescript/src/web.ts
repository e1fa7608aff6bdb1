// Connect from a browser, or from any runtime with fetch: gRPC-Web or Connect through a gateway.

import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";
import { Mesh, type MeshOptions, settled } from "./mesh.js";

export * from "./api.js";

/** Options of `connect`. */
export interface WebConnectOptions extends MeshOptions {
  /** The address of a gateway that serves the whole mesh by gRPC-Web or Connect. */
  url: string;
  /** The protocol, `grpc-web` by default. */
  protocol?: "grpc-web" | "connect";
  /** The function that makes HTTP requests, by default the global one. */
  fetch?: typeof globalThis.fetch;
}

/** Return a mesh. Throws TypeError without a token. Files are attached by content, not by path. */
export function connect(options: WebConnectOptions): Mesh {
  const settings = settled(options, options.token);
  const http = { baseUrl: options.url.replace(/\/+$/, ""), ...(options.fetch && { fetch: options.fetch }) };
  const create = options.protocol === "connect" ? createConnectTransport : createGrpcWebTransport;
  const transport = create({ ...http, useBinaryFormat: true });
  return new Mesh({ nameOf: () => "the mesh", transportOf: () => transport, close: () => {} }, settings);
}
