// Long work of a mesh: operations, which are followed, awaited and cancelled.

import { type DescMessage, fromBinary, type MessageShape } from "@bufbuild/protobuf";
import { type Any, anyIs, durationFromMs } from "@bufbuild/protobuf/wkt";
import { type Client, type Code, ConnectError } from "@connectrpc/connect";
import type { Connection } from "./connection.js";
import { MeshError, meshError, refusalOf } from "./errors.js";
import type { Operation as WireOperation } from "./gen/google/longrunning/operations_pb.js";
import {
  OperationMetadataSchema,
  OperationService,
} from "./gen/spawnmesh/operations/v1/operation_service_pb.js";
import {
  DeleteTenantRequestSchema,
  DeleteTenantResponseSchema,
} from "./gen/spawnmesh/session/v1/tenant_service_pb.js";
import {
  RecountTranscriptRequestSchema,
  RecountTranscriptResponseSchema,
  TierAction as WireAction,
  TierTranscriptRequestSchema,
  TierTranscriptResponseSchema,
} from "./gen/spawnmesh/transcript/v1/storage_service_pb.js";
import { dateOf, type NameIn, nameOf, present, valueOf } from "./names.js";
import { newRequestId } from "./request_id.js";
import { PATIENCE_MS, Patience } from "./retry.js";
import { PEERS, type Peer } from "./services.js";
import { type Tenant, tenantView } from "./tenant_views.js";

/** A longer wait is split into several calls, so that no proxy takes it for dead. */
const WAIT_CALL_MS = 60_000;
const ANSWER_MS = 10_000;
const PAGE_SIZE = 500;
const NAME = /^services\/([a-z-]+)\/(?:tenants\/[a-z0-9-]+\/)?operations\/opr_[0-9a-z]{26}$/;

export type TierAction = NameIn<typeof WireAction>;

/** What an operation was asked to do. */
export type OperationRequest =
  | { readonly type: "TierTranscript"; readonly sessionId: string; readonly action: TierAction }
  | { readonly type: "RecountTranscript"; readonly sessionId: string; readonly dryRun: boolean }
  | { readonly type: "DeleteTenant"; readonly tenantId: string }
  | UnknownMessage;

/** The counts of a transcript whose large payloads are moved, or would be. */
export interface TierCounts {
  readonly type: "TierTranscript";
  readonly examinedEntries: number;
  /** Entries whose payloads were put into the blob store, or that got a reference. */
  readonly externalizedEntries: number;
  /** Entries whose copy in the database was dropped. */
  readonly cooledEntries: number;
  readonly cooledBytes: number;
  /** Entries that are complete in the database again. */
  readonly revertedEntries: number;
  readonly revertedBytes: number;
  /** Entries that failed. They are unchanged, and another operation tries them again. */
  readonly failedEntries: number;
  /** The reason of the newest failure. */
  readonly failureReason: string | undefined;
  /** Messages that contexts can condense from now on. */
  readonly condensedEntries: number;
}

/** The counts of a transcript whose tokens are counted anew, or would be. */
export interface RecountCounts {
  readonly type: "RecountTranscript";
  readonly examinedEntries: number;
  /** Entries that had been counted by another vocabulary, and their tokens before and after. */
  readonly recountedEntries: number;
  readonly tokensBefore: number;
  readonly tokensAfter: number;
  readonly tokenVocabulary: string;
}

/** A message of a newer mesh. */
export interface UnknownMessage {
  readonly type: "unknown";
  /** The full name of the message, such as `spawnmesh.transcript.v1.TierTranscriptResponse`. */
  readonly typeName: string;
  readonly value: Uint8Array;
}

/** A tenant that is being deleted, or is deleted. */
export interface TenantDeleted {
  readonly type: "DeleteTenant";
  readonly tenant: Tenant;
}

export type OperationResponse = TierCounts | RecountCounts | TenantDeleted | UnknownMessage;

/** An operation as it was when the mesh last answered. */
export interface OperationView<R extends OperationResponse = OperationResponse> {
  /** Such as `services/transcript/operations/opr_…`. */
  readonly name: string;
  /** The RPC that started it, such as `TierTranscript`. */
  readonly method: string;
  readonly request: OperationRequest | undefined;
  /** The subject of the token that started it. */
  readonly subject: string;
  readonly isDone: boolean;
  readonly doneCount: number;
  /** 0 as long as it is not known. */
  readonly totalCount: number;
  /** Why the newest step failed, if it is tried again. */
  readonly retryReason: string | undefined;
  readonly createTime: Date | undefined;
  readonly endTime: Date | undefined;
  readonly cancelTime: Date | undefined;
  /** False if `cancel` is refused, as for the deletion of a tenant. */
  readonly isCancellable: boolean;
  /** As far as it is known while the operation is not done. Absent before the first step. */
  readonly response: R | undefined;
  /** If it failed or was cancelled. */
  readonly error: MeshError | undefined;
}

/** Options of a wait. */
export interface WaitOptions<R extends OperationResponse = OperationResponse> {
  /** How long to wait. For ever by default. */
  readonly timeoutMs?: number;
  /** Is called whenever the progress was read: after the start, and every minute. */
  readonly onProgress?: (view: OperationView<R>) => void;
  readonly signal?: AbortSignal;
}

/** One operation, and what can be done with it. */
export class Operation<R extends OperationResponse = OperationResponse> {
  readonly #connection: Connection;
  readonly name: string;
  /** What the mesh last said. */
  view: OperationView<R>;

  /** Use `mesh.operations`. */
  constructor(connection: Connection, operation: WireOperation) {
    this.#connection = connection;
    this.name = operation.name;
    this.view = viewOf<R>(operation);
  }

  get isDone(): boolean {
    return this.view.isDone;
  }

  /** Get the operation as it is now. Throws NotFound. */
  async refresh(): Promise<this> {
    this.view = viewOf<R>(await this.wire.getOperation({ name: this.name }));
    return this;
  }

  /** Wait until the operation is done, as `result` does. Its own error is in `view.error`. */
  async wait(options: WaitOptions<R> = {}): Promise<this> {
    const { signal, timeoutMs = Number.POSITIVE_INFINITY, onProgress } = options;
    const { clock } = this.#connection;
    const patience = new Patience(Math.min(PATIENCE_MS, timeoutMs), clock);
    const end = clock.now() + timeoutMs;
    for (;;) {
      const left = Math.max(0, end - clock.now());
      const part = Math.min(left, WAIT_CALL_MS);
      const request = { name: this.name, timeout: durationFromMs(Math.round(part)) };
      patience.begin();
      try {
        const call = { timeoutMs: part + ANSWER_MS, ...(signal && { signal }) };
        this.view = viewOf<R>(await this.wire.waitOperation(request, call));
      } catch (error) {
        await patience.waitBeforeNext(error, signal);
        continue;
      }
      patience.answered();
      onProgress?.(this.view);
      if (this.view.isDone) return this;
      if (part === left) throw notDone(this.name);
    }
  }

  /**
   * Wait until the operation is done, and return its response. Throws its error, such as Cancelled; NotFound
   * if it was deleted; DeadlineExceeded after `timeoutMs`, while the operation goes on; and the reason of
   * the signal.
   */
  async result(options: WaitOptions<R> = {}): Promise<R> {
    const { error, response } = (await this.wait(options)).view;
    if (error !== undefined) throw error;
    if (response === undefined) throw new TypeError("the mesh answered without a response");
    return response;
  }

  /** Request that the operation ends after its current step. Nothing is undone. */
  async cancel(): Promise<void> {
    await this.wire.cancelOperation({ name: this.name });
  }

  /** Forget the operation. Throws Aborted if it is not done. */
  async delete(): Promise<void> {
    await this.wire.deleteOperation({ name: this.name });
  }

  private get wire(): Client<typeof OperationService> {
    return clientOf(this.#connection, this.name);
  }
}

/** Start, list and follow operations. */
export class Operations {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /** Return the operation as it is now. Throws NotFound. */
  async get(name: string): Promise<Operation> {
    const found = await clientOf(this.#connection, name).getOperation({ name });
    return new Operation(this.#connection, found);
  }

  /**
   * Yield the tenant's operations of a service, newest first: all, or with `isDone` those that are done, or
   * are not. With `tenantId`, those that operators of the mesh have started on that tenant. Pages are
   * fetched as needed.
   */
  async *list(
    options: { service?: Peer; isDone?: boolean; tenantId?: string } = {},
  ): AsyncGenerator<Operation, void, undefined> {
    const { service = "transcript", isDone, tenantId } = options;
    const name = `services/${service}${tenantId === undefined ? "" : `/tenants/${tenantId}`}`;
    const client = this.#connection.services.client(OperationService, service);
    const filter = isDone === undefined ? "" : `done = ${isDone}`;
    let pageToken = "";
    do {
      const page = await client.listOperations({
        name,
        filter,
        pageSize: PAGE_SIZE,
        pageToken,
      });
      yield* page.operations.map((one) => new Operation(this.#connection, one));
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /**
   * Start to move the large payloads of a transcript between the database and the blob store. The same
   * `requestId` returns the same operation. Needs the role of an operator. Throws NotFound, and
   * FailedPrecondition TIER_DISABLED for APPLY if the tenant does not want it.
   */
  async tier(
    sessionId: string,
    action: TierAction,
    options: { requestId?: string } = {},
  ): Promise<Operation<TierCounts>> {
    const requestId = options.requestId ?? newRequestId();
    const request = { sessionId, action: valueOf(WireAction, action), requestId };
    const { storage } = this.#connection.services;
    return new Operation(this.#connection, await storage.tierTranscript(request));
  }

  /**
   * Start to count the tokens of a transcript anew, after a change of the tenant's vocabulary, or with
   * `dryRun` to report what would change. The same `requestId` returns the same operation. Needs the role
   * of an operator. Throws NotFound.
   */
  async recount(
    sessionId: string,
    options: { dryRun?: boolean; requestId?: string } = {},
  ): Promise<Operation<RecountCounts>> {
    const { dryRun = false, requestId = newRequestId() } = options;
    const request = { sessionId, dryRun, requestId };
    const { storage } = this.#connection.services;
    return new Operation(this.#connection, await storage.recountTranscript(request));
  }
}

/** Return the client of the service in the name. Throws NotFound for what is no name of an operation. */
function clientOf(connection: Connection, name: string): Client<typeof OperationService> {
  const service = NAME.exec(name)?.[1];
  const peer = PEERS.find((one) => one === service);
  if (peer === undefined) {
    const facts = { resource: "operation", id: name };
    const message = `there is no operation ${name} here`;
    throw meshError({ reason: "NOT_FOUND", message, status: "NOT_FOUND", facts });
  }
  return connection.services.client(OperationService, peer);
}

function viewOf<R extends OperationResponse>(operation: WireOperation): OperationView<R> {
  const metadata = unpacked(operation.metadata, OperationMetadataSchema);
  const { result } = operation;
  const packed = result.case === "response" ? result.value : metadata?.partialResponse;
  return {
    name: operation.name,
    method: metadata?.method ?? "",
    request: metadata?.request && requestOf(metadata.request),
    subject: metadata?.subject ?? "",
    isDone: operation.done,
    doneCount: Number(metadata?.doneCount ?? 0n),
    totalCount: Number(metadata?.totalCount ?? 0n),
    retryReason: present(metadata?.retryReason ?? ""),
    createTime: dateOf(metadata?.createTime),
    endTime: dateOf(metadata?.endTime),
    cancelTime: dateOf(metadata?.cancelTime),
    isCancellable: metadata?.isCancellable ?? false,
    response: packed && (responseOf(packed) as R),
    error: result.case === "error" ? errorOf(result.value) : undefined,
  };
}

function requestOf(packed: Any): OperationRequest {
  const tier = unpacked(packed, TierTranscriptRequestSchema);
  if (tier !== undefined) {
    return { type: "TierTranscript", sessionId: tier.sessionId, action: nameOf(WireAction, tier.action) };
  }
  const recount = unpacked(packed, RecountTranscriptRequestSchema);
  if (recount !== undefined) {
    return { type: "RecountTranscript", sessionId: recount.sessionId, dryRun: recount.dryRun };
  }
  const deletion = unpacked(packed, DeleteTenantRequestSchema);
  if (deletion !== undefined) return { type: "DeleteTenant", tenantId: deletion.tenantId };
  return unknownOf(packed);
}

function responseOf(packed: Any): OperationResponse {
  const tier = unpacked(packed, TierTranscriptResponseSchema);
  if (tier !== undefined) {
    return {
      type: "TierTranscript",
      examinedEntries: Number(tier.examinedEntryCount),
      externalizedEntries: Number(tier.externalizedEntryCount),
      cooledEntries: Number(tier.cooledEntryCount),
      cooledBytes: Number(tier.cooledBytes),
      revertedEntries: Number(tier.revertedEntryCount),
      revertedBytes: Number(tier.revertedBytes),
      failedEntries: Number(tier.failedEntryCount),
      failureReason: present(tier.failureReason),
      condensedEntries: Number(tier.condensedEntryCount),
    };
  }
  const recount = unpacked(packed, RecountTranscriptResponseSchema);
  if (recount !== undefined) {
    return {
      type: "RecountTranscript",
      examinedEntries: Number(recount.examinedEntryCount),
      recountedEntries: Number(recount.recountedEntryCount),
      tokensBefore: Number(recount.tokenCountBefore),
      tokensAfter: Number(recount.tokenCountAfter),
      tokenVocabulary: recount.tokenVocabulary,
    };
  }
  const deleted = unpacked(packed, DeleteTenantResponseSchema);
  if (deleted !== undefined) return { type: "DeleteTenant", tenant: tenantView(deleted.tenant) };
  return unknownOf(packed);
}

function unknownOf({ typeUrl, value }: Any): UnknownMessage {
  return { type: "unknown", typeName: nameIn(typeUrl), value };
}

function unpacked<D extends DescMessage>(packed: Any | undefined, schema: D): MessageShape<D> | undefined {
  return packed && anyIs(packed, schema) ? fromBinary(schema, packed.value) : undefined;
}

/** Return the refusal that ended the operation, which has the form of one of a call. */
function errorOf(status: { code: number; message: string; details: readonly Any[] }): MeshError {
  const error = new ConnectError(status.message, status.code as Code);
  error.details = status.details.map(({ typeUrl, value }) => ({ type: nameIn(typeUrl), value }));
  const refusal = refusalOf(error, "the operation");
  if (refusal instanceof MeshError) return refusal;
  throw refusal;
}

function nameIn(typeUrl: string): string {
  return typeUrl.slice(typeUrl.lastIndexOf("/") + 1);
}

function notDone(name: string): MeshError {
  const message = `${name} is not done; it goes on`;
  const status = "DEADLINE_EXCEEDED";
  return meshError({ reason: "DEADLINE_EXCEEDED", message, status, facts: { name } });
}
