// Connect from Node: gRPC over HTTP/2.

import { createHash } from "node:crypto";
import { type FileHandle, open } from "node:fs/promises";
import { basename } from "node:path";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import type { LocalFiles, Source } from "./attachments.js";
import { Mesh, type MeshOptions, settled } from "./mesh.js";
import { type Peer, PEERS } from "./services.js";

/** Certificates in PEM. Without them, the system's authorities are trusted. */
export interface TlsOptions {
  readonly ca?: string | Buffer;
  readonly cert?: string | Buffer;
  readonly key?: string | Buffer;
}

/** Options of `connect`. */
export interface ConnectOptions extends MeshOptions {
  /** The address of a gateway that serves the whole mesh. By default SPAWNMESH_URL. */
  url?: string;
  /** The address of each service, as `host:port` or a URL, if there is no gateway. */
  targets?: Partial<Record<Peer, string>>;
  /** The certificates for addresses that begin with `https://`. With them, `host:port` is such one. */
  tls?: TlsOptions;
}

const HASHED_BYTES = 1024 * 1024;
const PING = { pingIntervalMs: 30_000, pingTimeoutMs: 5_000 };

/**
 * Return a mesh. The first call opens the connection. `url`, `targets` and `token` that are not given
 * come from the environment: SPAWNMESH_URL and SPAWNMESH_TOKEN. Throws TypeError for an address or a
 * token that is missing or malformed.
 */
export function connect(options: ConnectOptions = {}): Mesh {
  const settings = settled(options, options.token ?? process.env["SPAWNMESH_TOKEN"]);
  const addresses = addressesOf(options);
  const managers = new Map<string, Http2SessionManager>();
  return new Mesh(
    {
      files: FILES,
      canUpload: addresses.url !== undefined || addresses.targets["attachment-blob"] !== undefined,
      nameOf: (peer) => (addresses.url === undefined ? peer : "the mesh"),
      transportOf: (peer) => {
        const baseUrl = addresses.url ?? addresses.targets[peer];
        if (baseUrl === undefined) {
          throw new TypeError(`no address of ${peer}: pass \`url\`, or \`targets\` with ${peer}`);
        }
        const known = managers.get(baseUrl);
        const manager = known ?? new Http2SessionManager(baseUrl, PING, { ...options.tls });
        managers.set(baseUrl, manager);
        return createGrpcTransport({
          baseUrl,
          sessionManager: manager,
          readMaxBytes: settings.maxMessageBytes,
          writeMaxBytes: settings.maxMessageBytes,
        });
      },
      close: () => managers.forEach((manager) => manager.abort()),
    },
    settings,
  );
}

interface Addresses {
  readonly url: string | undefined;
  readonly targets: Partial<Record<Peer, string>>;
}

function addressesOf(options: ConnectOptions): Addresses {
  if (options.url !== undefined && options.targets !== undefined) {
    throw new TypeError("pass `url` or `targets`, and not both");
  }
  if (options.targets === undefined) {
    const url = options.url ?? process.env["SPAWNMESH_URL"];
    if (!url) throw new TypeError("no address: pass `url` or `targets`, or set SPAWNMESH_URL");
    return { url: addressOf("url", url, options.tls), targets: {} };
  }
  const targets: Partial<Record<Peer, string>> = {};
  for (const peer of PEERS) {
    const target = options.targets[peer];
    if (target !== undefined) targets[peer] = addressOf(`targets.${peer}`, target, options.tls);
  }
  return { url: undefined, targets };
}

/** Return the address as a URL. A target without a scheme uses TLS if there are certificates. */
function addressOf(name: string, given: string, tls: TlsOptions | undefined): string {
  const text = given.includes("://") ? given : `${tls ? "https" : "http"}://${given}`;
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !["http:", "https:"].includes(url.protocol) || url.hostname === "") {
    throw new TypeError(`${name} is ${JSON.stringify(given)}, and no http(s) URL or host:port`);
  }
  if (tls && url.protocol === "http:") {
    throw new TypeError(`${name} begins with http://, and \`tls\` is given`);
  }
  return text.replace(/\/+$/, "");
}

const FILES: LocalFiles = {
  nameOf: (path) => basename(path),
  open: async (path) => {
    const file = await open(path);
    try {
      return sourceOf(file, (await file.stat()).size);
    } catch (error) {
      await file.close();
      throw error;
    }
  },
};

function sourceOf(file: FileHandle, size: number): Source {
  const read = async (offset: number, length: number): Promise<Uint8Array> => {
    const data = new Uint8Array(length);
    let filled = 0;
    while (filled < length) {
      const { bytesRead } = await file.read(data, filled, length - filled, offset + filled);
      if (bytesRead === 0) break; // The file has become shorter.
      filled += bytesRead;
    }
    return data.subarray(0, filled);
  };
  return {
    size,
    read,
    sha256: async () => {
      const hash = createHash("sha256");
      for (let offset = 0; offset < size; ) {
        const data = await read(offset, Math.min(HASHED_BYTES, size - offset));
        if (data.length === 0) break;
        hash.update(data);
        offset += data.length;
      }
      return hash.digest("hex");
    },
    close: () => file.close(),
  };
}
