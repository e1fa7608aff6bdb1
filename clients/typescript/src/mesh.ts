// A mesh as the tenant of one token sees it.

import { durationFromMs } from "@bufbuild/protobuf/wkt";
import type { Transport } from "@connectrpc/connect";
import { Agents } from "./agents.js";
import { Approvals } from "./approvals.js";
import {
  type Attachment,
  type LocalFiles,
  nameFile,
  prepareAttachments,
  type Sendable,
} from "./attachments.js";
import { type Budget, budgetMessage } from "./budgets.js";
import { Files } from "./files.js";
import { ThinkingLevel as WireThinking } from "./gen/spawnmesh/content/v1/thinking_pb.js";
import {
  Cleanup as WireCleanup,
  ContextMode as WireContext,
  Runtime as WireRuntime,
  SessionMode as WireMode,
  SessionView as WireView,
} from "./gen/spawnmesh/session/v1/session_pb.js";
import { Models } from "./models.js";
import { valueOf } from "./names.js";
import { Operations } from "./operations.js";
import { Plugins } from "./plugins.js";
import { newRequestId } from "./request_id.js";
import { type Clock, DEFAULT_RETRY, type RetryPolicy, SYSTEM_CLOCK } from "./retry.js";
import { Schedules } from "./schedules.js";
import { type Peer, Services } from "./services.js";
import { type SearchHit, type SearchOptions, type SearchQuery, search } from "./search.js";
import { type RunResult, Session } from "./session.js";
import { type DiffOptions, diffSessions, type SessionDiff } from "./session_diff.js";
import { Tenants } from "./tenants.js";
import { MeshTransport, type Token } from "./transport.js";
import type { OnProgress } from "./transfers.js";
import { uploadFile } from "./uploads.js";
import type { Cleanup, ContextMode, Runtime, SessionMode, ThinkingLevel } from "./views.js";
import { Webhooks } from "./webhooks.js";

const SPAWN_MS = 60_000;
const MIB = 1024 * 1024;

/** Settings that `connect` takes for every transport. */
export interface MeshOptions {
  /** A token of the tenant, or a function that is called before each call, as tokens expire. */
  token?: Token;
  /** The longest time of a call with all its repeats, unless a function says otherwise. 10 s. */
  timeoutMs?: number;
  /** How calls that may be repeated are repeated. */
  retry?: Partial<RetryPolicy>;
  /** The largest message that the mesh accepts. 16 MiB, as its services have it. */
  maxMessageBytes?: number;
}

/** Options of a spawn. */
export interface SpawnOptions {
  /**
   * The files to attach. Those above 1 MiB are uploaded before the spawn. In a browser, and without an
   * address of `attachment-blob`, all of them together must fit into one request.
   */
  attachments?: readonly Attachment[];
  /** Is called while files are uploaded. */
  onProgress?: OnProgress;
  /** The agent, by default `default`. */
  agentId?: string;
  /** A name for people. */
  label?: string;
  /** What the session is to be found by, such as `{ ticket: "17" }`. */
  metadata?: Record<string, string>;
  /** The model to call instead of the agent's first one. */
  model?: string;
  thinking?: ThinkingLevel;
  /** RUN (default) closes the session with its run; SESSION keeps it open for messages. */
  mode?: SessionMode;
  context?: ContextMode;
  cleanup?: Cleanup;
  runtime?: Runtime;
  /** How long each run may take. An hour by default. */
  runTimeoutMs?: number;
  /** A hint where to show the files. */
  mountPath?: string;
  parentSessionId?: string;
  /** Begin with a copy of the messages of a session, or of the parent, up to this entry. */
  fork?: { sessionId?: string; seq: number };
  /** What the session and all its descendants may use. While it is used up, their runs wait. */
  budget?: Budget;
  /** For a day, the same id with the same task returns the same session. Drawn by default. */
  requestId?: string;
  timeoutMs?: number;
  signal?: AbortSignal;
}

/** Options of a list of sessions. */
export interface SessionsOptions {
  /** A filter of AIP-160, such as `state = ACTIVE AND metadata.ticket = "17"`. */
  filter?: string;
  /** The order, by default the newest first. */
  orderBy?: "create_time desc" | "create_time" | "end_time desc";
  /** With the result of the newest run and the files of the receipt, which lists leave out. */
  isFull?: boolean;
  includeArchived?: boolean;
  pageSize?: number;
}

/** What a platform gives: transports, and the files of the machine. */
export interface Platform {
  transportOf(peer: Peer): Transport;
  /** The name for errors. */
  nameOf(peer: Peer): string;
  readonly files?: LocalFiles;
  /** Whether requests can be streams to `attachment-blob`. */
  readonly canUpload?: boolean;
  close(): void;
  readonly clock?: Clock;
}

/** The settings with their defaults. Throws TypeError without a token. */
export function settled(options: MeshOptions, token: Token | undefined) {
  if (token === undefined || token === "") {
    throw new TypeError("no token: pass `token`, or set SPAWNMESH_TOKEN");
  }
  return {
    token,
    timeoutMs: options.timeoutMs ?? 10_000,
    retry: { ...DEFAULT_RETRY, ...options.retry },
    maxMessageBytes: options.maxMessageBytes ?? 16 * MIB,
  };
}

/** A mesh. Several tasks may use it at once. */
export class Mesh {
  /** The generated clients, for RPCs that have no function here. */
  readonly services: Services;
  readonly agents: Agents;
  /** Tool calls that wait for a person, and questions of agents. */
  readonly approvals: Approvals;
  /** The files that are attached to sessions. */
  readonly files: Files;
  /** The models that agents and spawns may name. */
  readonly models: Models;
  /** Long work, such as that of tiering and recounts. */
  readonly operations: Operations;
  /** Programs of the tenant that the mesh calls at hooks. */
  readonly plugins: Plugins;
  /** Cron lines that spawn sessions. */
  readonly schedules: Schedules;
  /** All tenants, for operators of the mesh. */
  readonly tenants: Tenants;
  /** Addresses outside of the mesh that are sent the events of the tenant. */
  readonly webhooks: Webhooks;
  readonly #platform: Platform;
  readonly #maxMessageBytes: number;
  readonly #clock: Clock;

  /** Use `connect`. */
  constructor(platform: Platform, settings: ReturnType<typeof settled>) {
    this.#platform = platform;
    this.#maxMessageBytes = settings.maxMessageBytes;
    this.#clock = platform.clock ?? SYSTEM_CLOCK;
    const calls = { ...settings, clock: this.#clock };
    const transports = new Map<Peer, Transport>();
    this.services = new Services((peer) => {
      const known = transports.get(peer);
      if (known !== undefined) return known;
      const inner = platform.transportOf(peer);
      const transport = new MeshTransport(inner, peer, platform.nameOf(peer), calls);
      transports.set(peer, transport);
      return transport;
    });
    this.agents = new Agents(this.services);
    this.approvals = new Approvals(this.services);
    const connection = { services: this.services, clock: this.#clock };
    const { files, canUpload = false } = platform;
    this.files = new Files({ ...connection, ...(canUpload && { upload: true }), ...(files && { files }) });
    this.models = new Models(this.services);
    this.operations = new Operations(connection);
    this.plugins = new Plugins(this.services);
    this.schedules = new Schedules(this.services);
    this.tenants = new Tenants(connection);
    this.webhooks = new Webhooks(this.services);
  }

  /**
   * Return where two sessions went apart, such as a fork and the session it was forked from, with up to
   * `maxEntries` entries of each from there on. Entries are compared by what they say: roles, texts, tool
   * calls with their arguments, and results. Ids, times, models, thinking and usage do not count. Throws
   * NotFound.
   */
  async diff(a: Session | string, b: Session | string, options: DiffOptions = {}): Promise<SessionDiff> {
    const [idA, idB] = [a, b].map((one) => (typeof one === "string" ? one : one.id)) as [string, string];
    return diffSessions(this.services, idA, idB, options);
  }

  /**
   * Spawn a session and queue its run. It is durable on return. Large files are uploaded first, which may
   * take longer than `timeoutMs`; a repeat goes on where an upload ended. Throws a MeshError if the mesh
   * refuses, and the error of the file system for a file that cannot be read.
   */
  async spawn(task: string, options: SpawnOptions = {}): Promise<Session> {
    const { attachments = [], timeoutMs = SPAWN_MS, signal, onProgress } = options;
    const { files, canUpload = false } = this.#platform;
    const upload = (file: Sendable): Promise<string> => {
      const blobs = this.services.attachmentBlob;
      return uploadFile({ blobs, clock: this.#clock, onProgress, signal }, file);
    };
    const maxBytes = this.#maxMessageBytes;
    const prepared = prepareAttachments(attachments, maxBytes, files, canUpload ? upload : undefined);
    const { inline, uploads, references, names } = await prepared;
    const request = {
      requestId: options.requestId ?? newRequestId(),
      task,
      label: options.label ?? "",
      metadata: options.metadata ?? {},
      agentId: options.agentId ?? "",
      model: options.model ?? "",
      thinking: valueOf(WireThinking, options.thinking),
      mode: valueOf(WireMode, options.mode),
      context: valueOf(WireContext, options.context),
      cleanup: valueOf(WireCleanup, options.cleanup),
      runtime: valueOf(WireRuntime, options.runtime),
      parentSessionId: options.parentSessionId ?? "",
      attachments: inline,
      uploads,
      references,
      ...(options.fork !== undefined && {
        fork: { sessionId: options.fork.sessionId ?? "", seq: BigInt(options.fork.seq) },
      }),
      ...(options.budget !== undefined && { budget: budgetMessage(options.budget) }),
      ...(options.runTimeoutMs !== undefined && { runTimeout: durationFromMs(options.runTimeoutMs) }),
      ...(options.mountPath !== undefined && { attachAs: { mountPath: options.mountPath } }),
    };
    const call = { timeoutMs, ...(signal && { signal }) };
    try {
      return this.sessionOf((await this.services.session.spawnSession(request, call)).session);
    } catch (error) {
      nameFile(error, names);
      throw error;
    }
  }

  /**
   * Spawn a session, and return its answer: a spawn and its result in one call. `waitMs` bounds the wait.
   * Throws what `spawn` and `Session.result` throw.
   */
  async run(task: string, options: SpawnOptions & { waitMs?: number } = {}): Promise<RunResult> {
    const { waitMs, signal } = options;
    const session = await this.spawn(task, options);
    return session.result({ ...(waitMs !== undefined && { timeoutMs: waitMs }), ...(signal && { signal }) });
  }

  /** Yield the places of a session's transcript as `Session.search` does. Throws NotFound. */
  search(
    sessionId: string,
    query: SearchQuery,
    options: SearchOptions = {},
  ): AsyncGenerator<SearchHit, void, undefined> {
    return search({ services: this.services, clock: this.#clock }, sessionId, query, options);
  }

  /** Return the session as it is now. Throws NotFound. */
  async session(sessionId: string): Promise<Session> {
    return this.sessionOf((await this.services.session.getSession({ sessionId })).session);
  }

  /** Yield the tenant's sessions, newest first by default. Pages are fetched as needed. */
  async *sessions(options: SessionsOptions = {}): AsyncGenerator<Session, void, undefined> {
    const request = {
      filter: options.filter ?? "",
      orderBy: options.orderBy ?? "",
      view: options.isFull ? WireView.FULL : WireView.BASIC,
      includeArchived: options.includeArchived ?? false,
      pageSize: options.pageSize ?? 0,
    };
    let pageToken = "";
    do {
      const page = await this.services.session.listSessions({ ...request, pageToken });
      yield* page.sessions.map((session) => this.sessionOf(session));
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /** Close the connections. Calls that wait are cancelled. A program may also just end. */
  close(): void {
    this.#platform.close();
  }

  private sessionOf(session: ConstructorParameters<typeof Session>[1]): Session {
    return new Session({ services: this.services, clock: this.#clock }, session);
  }
}
