// Typed errors: a refusal of the mesh, and the failure of a run.

import { Code, ConnectError } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import type { Reason as ReasonEnum } from "./gen/spawnmesh/errors/v1/reason_pb.js";

/** The reasons with which a call can be refused, as `spawnmesh/errors/v1/reason.proto` explains them. */
export type Reason = Exclude<keyof typeof ReasonEnum, "UNSPECIFIED">;

/** A malformed field of a request, such as `attachments[2].name`. */
export interface FieldViolation {
  readonly field: string;
  readonly description: string;
}

/** The content of a MeshError. */
export interface Refusal {
  readonly reason: Reason | (string & {});
  readonly message: string;
  readonly status: Status;
  readonly facts?: Record<string, string>;
  readonly violations?: readonly FieldViolation[];
  readonly retryAfterMs?: number | undefined;
  readonly domain?: string;
  readonly cause?: unknown;
}

/** A refusal of a call. Its subclasses are the gRPC status codes; branch on the class or the reason. */
export class MeshError extends Error {
  /** The reason. A newer mesh can send one that this package does not know. */
  readonly reason: Reason | (string & {});
  readonly status: Status;
  /** Ids, limits and values that belong to the reason. */
  readonly facts: Record<string, string>;
  /** The malformed fields, for INVALID_REQUEST. */
  readonly violations: readonly FieldViolation[];
  /** The time after which the service accepts the call again, if it said so. */
  readonly retryAfterMs: number | undefined;
  /** The service that refused, such as `session.spawnmesh`. Empty if no service answered. */
  readonly domain: string;

  constructor(refusal: Refusal) {
    super(refusal.message, refusal.cause === undefined ? undefined : { cause: refusal.cause });
    this.name = new.target.name;
    this.reason = refusal.reason;
    this.status = refusal.status;
    this.facts = refusal.facts ?? {};
    this.violations = refusal.violations ?? [];
    this.retryAfterMs = refusal.retryAfterMs;
    this.domain = refusal.domain ?? "";
  }
}

/** The request is malformed or out of bounds. */
export class InvalidArgument extends MeshError {}
/** The token is missing, malformed, expired or revoked. */
export class Unauthenticated extends MeshError {}
/** The caller, its role or a hook does not allow the call. */
export class PermissionDenied extends MeshError {}
/** The tenant of the token has no such resource. */
export class NotFound extends MeshError {}
/** The id or the request id was used for something else. */
export class AlreadyExists extends MeshError {}
/** The resource is in a state that does not allow the call. */
export class FailedPrecondition extends MeshError {}
/** A quota or a limit is reached. */
export class ResourceExhausted extends MeshError {}
/** The call lost against a concurrent one. */
export class Aborted extends MeshError {}
/** The service, or something it needs, does not answer. */
export class Unavailable extends MeshError {}
/** The deadline passed before the answer. */
export class DeadlineExceeded extends MeshError {}
/** The service cancelled the call. */
export class Cancelled extends MeshError {}
/** Stored bytes differ from their hash. */
export class DataLoss extends MeshError {}
/** There is no such call: the mesh is of another version, or there is no mesh at this address. */
export class Unimplemented extends MeshError {}
/** A defect of the mesh. */
export class Internal extends MeshError {}

const CLASSES = {
  INVALID_ARGUMENT: InvalidArgument,
  UNAUTHENTICATED: Unauthenticated,
  PERMISSION_DENIED: PermissionDenied,
  NOT_FOUND: NotFound,
  ALREADY_EXISTS: AlreadyExists,
  FAILED_PRECONDITION: FailedPrecondition,
  RESOURCE_EXHAUSTED: ResourceExhausted,
  ABORTED: Aborted,
  UNAVAILABLE: Unavailable,
  DEADLINE_EXCEEDED: DeadlineExceeded,
  CANCELLED: Cancelled,
  DATA_LOSS: DataLoss,
  UNIMPLEMENTED: Unimplemented,
  INTERNAL: Internal,
};

/** The gRPC status codes of refusals. */
export type Status = keyof typeof CLASSES;

const STATUS_OF: Partial<Record<Code, Status>> = {
  [Code.InvalidArgument]: "INVALID_ARGUMENT",
  [Code.Unauthenticated]: "UNAUTHENTICATED",
  [Code.PermissionDenied]: "PERMISSION_DENIED",
  [Code.NotFound]: "NOT_FOUND",
  [Code.AlreadyExists]: "ALREADY_EXISTS",
  [Code.FailedPrecondition]: "FAILED_PRECONDITION",
  [Code.ResourceExhausted]: "RESOURCE_EXHAUSTED",
  [Code.Aborted]: "ABORTED",
  [Code.Unavailable]: "UNAVAILABLE",
  [Code.DeadlineExceeded]: "DEADLINE_EXCEEDED",
  [Code.Canceled]: "CANCELLED",
  [Code.DataLoss]: "DATA_LOSS",
  [Code.Unimplemented]: "UNIMPLEMENTED",
};

/** The refusals for a status without details: a proxy, a gateway or the transport made it. */
const REASON_OF: Partial<Record<Status, readonly [Reason, string]>> = {
  CANCELLED: ["CANCELLED", "cancelled the call"],
  DEADLINE_EXCEEDED: ["DEADLINE_EXCEEDED", "did not answer before the deadline"],
  RESOURCE_EXHAUSTED: ["POOL_EXHAUSTED", "has too much to do; call again later"],
  UNAUTHENTICATED: ["TOKEN_INVALID", "did not accept the credentials"],
  PERMISSION_DENIED: ["CALLER_NOT_ALLOWED", "does not allow the call"],
  UNIMPLEMENTED: ["UNKNOWN_RPC", "has no such call"],
  UNAVAILABLE: ["DEPENDENCY_UNAVAILABLE", "does not answer; call again later"],
};
// RESOURCE_EXHAUSTED has two meanings, and only the texts of the implementations tell them apart.
const TOO_LARGE = /larger than|exceeds (the )?maximum|exceeds (soft|hard) limit/;
/** The codes that the transport gives to a connection that cannot be opened, or that breaks. */
const BROKEN: readonly Code[] = [Code.Unavailable, Code.Aborted, Code.Canceled, Code.Internal];
const OWN_MISTAKE = /^(serialize|parse) /;

/** Return the MeshError of the class for its status. */
export function meshError(refusal: Refusal): MeshError {
  return new CLASSES[refusal.status](refusal);
}

/**
 * Return the refusal that the service sent, or the one for a bare status or a broken connection.
 * `peer` names the service. Errors of other kinds, such as a TypeError for a malformed request, are
 * returned as they are.
 */
export function refusalOf(error: unknown, peer: string): unknown {
  if (!(error instanceof ConnectError)) return error;
  const [info] = error.findDetails(ErrorInfoSchema);
  const status = STATUS_OF[error.code] ?? "INTERNAL";
  if (info === undefined || !info.domain.endsWith(".spawnmesh")) return bareRefusal(error, status, peer);
  const delay = error.findDetails(RetryInfoSchema)[0]?.retryDelay;
  const violations = error.findDetails(BadRequestSchema).flatMap((bad) => bad.fieldViolations);
  return meshError({
    reason: info.reason,
    message: error.rawMessage,
    status,
    facts: { ...info.metadata },
    violations: violations.map(({ field, description }) => ({ field, description })),
    retryAfterMs: delay && Number(delay.seconds) * 1000 + delay.nanos / 1e6,
    domain: info.domain,
  });
}

function bareRefusal(error: ConnectError, status: Status, peer: string): MeshError {
  const facts = { dependency: peer };
  if (status === "RESOURCE_EXHAUSTED" && TOO_LARGE.test(error.rawMessage)) {
    const message = `a message to or from ${peer} is too large: ${error.rawMessage}`;
    return meshError({ reason: "MESSAGE_TOO_LARGE", message, status, facts, cause: error });
  }
  if (isBroken(error)) {
    const message = `${peer} does not answer: ${error.rawMessage}`;
    const refusal = { reason: "DEPENDENCY_UNAVAILABLE", message, facts, cause: error };
    return meshError({ ...refusal, status: "UNAVAILABLE" });
  }
  const [reason, text] = REASON_OF[status] ?? ["INTERNAL", `failed: ${error.rawMessage}`];
  return meshError({ reason, message: `${peer} ${text}`, status, facts, cause: error });
}

/** Return whether no answer came. The error of an answer has the headers of that answer. */
function isBroken(error: ConnectError): boolean {
  const hasAnswer = error.metadata.keys().next().done !== true;
  return !hasAnswer && BROKEN.includes(error.code) && !OWN_MISTAKE.test(error.rawMessage);
}

/** The run of a session ended without a result, or the session was not spawned. */
export class RunFailed extends Error {
  /** The reason of the failure, such as `UNKNOWN_MODEL` or `KILLED`. */
  readonly reason: string;
  /** The state of the run, or `SPAWN_FAILED` for a session that was not spawned. */
  readonly state: "FAILED" | "TIMED_OUT" | "KILLED" | "INTERRUPTED" | "SPAWN_FAILED";
  readonly sessionId: string;
  /** Absent for a session that was not spawned. */
  readonly runId: string | undefined;
  /** The trace of the session: `spawnmesh trace <session id>` shows it. */
  readonly traceId: string;

  constructor(failure: Pick<RunFailed, "reason" | "state" | "message" | "sessionId" | "runId" | "traceId">) {
    super(failure.message);
    this.name = "RunFailed";
    this.reason = failure.reason;
    this.state = failure.state;
    this.sessionId = failure.sessionId;
    this.runId = failure.runId;
    this.traceId = failure.traceId;
  }
}

/** The run did not end in the time that `result` was given. It goes on: call `result` again. */
export class ResultTimeout extends Error {
  readonly sessionId: string;
  readonly timeoutMs: number;

  constructor(sessionId: string, timeoutMs: number) {
    super(`the run of ${sessionId} did not end within ${timeoutMs} ms; it goes on, call result() again`);
    this.name = "ResultTimeout";
    this.sessionId = sessionId;
    this.timeoutMs = timeoutMs;
  }
}
