// Tool calls of runs that wait for a person, and questions of agents to one.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, durationMs } from "@bufbuild/protobuf/wkt";
import {
  type Approval as WireApproval,
  type ApprovalPolicy as WirePolicy,
  type ApprovalPolicySchema,
  ApprovalState as WireState,
  ExpiryPolicy as WireExpiry,
} from "./gen/spawnmesh/session/v1/approval_pb.js";
import type { DecideApprovalRequestSchema } from "./gen/spawnmesh/session/v1/approval_service_pb.js";
import { chosenName, dateOf, type NameIn, nameOf, present, valueOf } from "./names.js";
import type { Services } from "./services.js";

export type ApprovalState = NameIn<typeof WireState>;
export type ExpiryPolicy = NameIn<typeof WireExpiry>;

/** A JSON object. Integers above 2^53 lose digits in it: the text beside it has them all. */
export type JsonObject = Readonly<Record<string, unknown>>;

/** Which calls of an agent's tools need a person's approval, and what happens if no person decides. */
export interface ApprovalPolicy {
  /** Names of tools, and beginnings of names that end in `*`, such as `mcp__mail__*`. */
  readonly tools?: readonly string[];
  /** Calls of MCP tools that may destroy something need an approval. */
  readonly destructiveMcpTools?: boolean;
  /** How long a call or a question waits. 24 hours by default. */
  readonly timeoutMs?: number | undefined;
  /**
   * The rule after that time: the call is denied (default), the run fails with APPROVAL_EXPIRED, or
   * the approval is escalated: it waits for as long again, and webhooks hear of it.
   */
  readonly onExpiry?: ExpiryPolicy | undefined;
}

/** A tool call or a question that waits, or waited, for a person. */
export interface Approval {
  readonly approvalId: string;
  readonly sessionId: string;
  readonly runId: string;
  readonly agentId: string;
  /** PENDING, then one of the others. */
  readonly state: ApprovalState;
  readonly subject: ApprovalSubject;
  /** Why the call needs an approval, for people. Absent for a question. */
  readonly reason: string | undefined;
  readonly createTime: Date | undefined;
  /** The end of the time for a decision. It moves once, when the approval is escalated. */
  readonly expireTime: Date | undefined;
  /** When the approval was escalated. Absent if it was not. */
  readonly escalateTime: Date | undefined;
  /** What happens then. */
  readonly onExpiry: ExpiryPolicy;
  /** When the approval left the state PENDING. */
  readonly decideTime: Date | undefined;
  /** The subject of the token of the person. Absent if no person decided. */
  readonly decidedBy: string | undefined;
  /** The arguments of an APPROVED call, if a person edited them. */
  readonly editedArguments: JsonObject | undefined;
  readonly editedArgumentsJson: string | undefined;
  /** The reason of a DENIED call, or the answer to an ANSWERED question. */
  readonly text: string | undefined;
  /** When a runner took over the decision to make the call, which is made at most once. */
  readonly beginTime: Date | undefined;
}

/** The call or the question. `type` says which of them it is. */
export type ApprovalSubject =
  | {
      readonly type: "toolCall";
      readonly toolName: string;
      /** The arguments. Absent if their text is no JSON object, such as one with NaN. */
      readonly arguments: JsonObject | undefined;
      readonly argumentsJson: string;
      readonly argumentsSha256: string;
      /** The JSON Schema of the arguments, which edited arguments must fit. */
      readonly parameters: JsonObject | undefined;
    }
  /** Without choices, any text is an answer. */
  | { readonly type: "question"; readonly text: string; readonly choices: readonly string[] }
  /** A kind that a newer mesh sends. */
  | { readonly type: "unknown" };

/** Options of a list of approvals, which must fulfil all that are given. */
export interface ApprovalsOptions {
  readonly state?: ApprovalState;
  /** The session with its descendants. */
  readonly sessionId?: string;
  readonly agentId?: string;
  readonly toolName?: string;
}

const PAGE_SIZE = 500;

/** List approvals, and decide on them. */
export class Approvals {
  readonly #services: Services;

  constructor(services: Services) {
    this.#services = services;
  }

  /** Yield the tenant's approvals, oldest first. Pages are fetched as needed. */
  async *list(options: ApprovalsOptions = {}): AsyncGenerator<Approval, void, undefined> {
    const request = {
      state: valueOf(WireState, options.state),
      sessionId: options.sessionId ?? "",
      agentId: options.agentId ?? "",
      toolName: options.toolName ?? "",
      pageSize: PAGE_SIZE,
    };
    let pageToken = "";
    do {
      const page = await this.#services.approval.listApprovals({ ...request, pageToken });
      yield* page.approvals.map(approvalView);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /** Return one approval. Throws NotFound. */
  async get(approvalId: string): Promise<Approval> {
    return viewed((await this.#services.approval.getApproval({ approvalId })).approval);
  }

  /**
   * Let the call be made, with other `arguments` if they are given. The run goes on.
   *
   * A repeat of the same decision changes nothing. Throws FailedPrecondition APPROVAL_CLOSED if the
   * approval was decided otherwise, its time is over or its run ended; NotFound; InvalidArgument
   * for arguments that do not fit the schema of the tool, and for a question; FailedPrecondition
   * SECRET_NOT_KEPT for arguments with a secret that the tenant masks; and TypeError for arguments that
   * are no JSON object.
   */
  async approve(approvalId: string, options: { arguments?: JsonObject } = {}): Promise<Approval> {
    const argumentsJson = options.arguments === undefined ? "" : jsonOf(options.arguments);
    return this.#decide(approvalId, { case: "approve", value: { argumentsJson } });
  }

  /**
   * Refuse the call, or give no answer to a question. The model reads the reason, and the run goes on.
   * A repeat and refusals are as for `approve`.
   */
  async deny(approvalId: string, options: { reason?: string } = {}): Promise<Approval> {
    return this.#decide(approvalId, { case: "deny", value: { reason: options.reason ?? "" } });
  }

  /**
   * Answer a question. The model reads the text, and the run goes on. Throws InvalidArgument for a text
   * that is none of the choices, and for a tool call. Otherwise as `approve`.
   */
  async answer(approvalId: string, text: string): Promise<Approval> {
    return this.#decide(approvalId, { case: "answer", value: { text } });
  }

  async #decide(approvalId: string, decision: Decision): Promise<Approval> {
    return viewed((await this.#services.approval.decideApproval({ approvalId, decision })).approval);
  }
}

type Decision = NonNullable<MessageInitShape<typeof DecideApprovalRequestSchema>["decision"]>;

/** Return the policy as a message of the contract. */
export function policyMessage(policy: ApprovalPolicy): MessageInitShape<typeof ApprovalPolicySchema> {
  return {
    tools: [...(policy.tools ?? [])],
    destructiveMcpTools: policy.destructiveMcpTools ?? false,
    onExpiry: valueOf(WireExpiry, policy.onExpiry),
    ...(policy.timeoutMs !== undefined && { timeout: durationFromMs(policy.timeoutMs) }),
  };
}

export function policyView(policy: WirePolicy): ApprovalPolicy {
  return {
    tools: policy.tools,
    destructiveMcpTools: policy.destructiveMcpTools,
    timeoutMs: policy.timeout && durationMs(policy.timeout),
    onExpiry: chosenName(WireExpiry, policy.onExpiry),
  };
}

function viewed(approval: WireApproval | undefined): Approval {
  if (approval === undefined) throw new TypeError("the mesh answered without an approval");
  return approvalView(approval);
}

function approvalView(approval: WireApproval): Approval {
  return {
    approvalId: approval.approvalId,
    sessionId: approval.sessionId,
    runId: approval.runId,
    agentId: approval.agentId,
    state: nameOf(WireState, approval.state),
    subject: subjectView(approval.subject),
    reason: present(approval.reason),
    createTime: dateOf(approval.createTime),
    expireTime: dateOf(approval.expireTime),
    escalateTime: dateOf(approval.escalateTime),
    onExpiry: chosenName(WireExpiry, approval.onExpiry) ?? "DENY",
    decideTime: dateOf(approval.decideTime),
    decidedBy: present(approval.decidedBy),
    editedArguments: objectOf(approval.editedArgumentsJson),
    editedArgumentsJson: present(approval.editedArgumentsJson),
    text: present(approval.text),
    beginTime: dateOf(approval.beginTime),
  };
}

function subjectView(subject: WireApproval["subject"]): ApprovalSubject {
  switch (subject.case) {
    case "toolCall": {
      const { toolName, argumentsJson, argumentsSha256, parametersJson } = subject.value;
      return {
        type: "toolCall",
        toolName,
        arguments: objectOf(argumentsJson),
        argumentsJson,
        argumentsSha256,
        parameters: objectOf(parametersJson),
      };
    }
    case "question":
      return { type: "question", text: subject.value.text, choices: subject.value.choices };
    default:
      return { type: "unknown" };
  }
}

/** Return the JSON object, or undefined for another text: one bad call must not end a list. */
function objectOf(json: string): JsonObject | undefined {
  try {
    const value: unknown = JSON.parse(json);
    const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
    return isObject ? (value as JsonObject) : undefined;
  } catch {
    return undefined;
  }
}

/** Return the object as JSON. Throws TypeError for another value: no text would mean an unedited call. */
function jsonOf(value: JsonObject): string {
  const json: string | undefined = JSON.stringify(value);
  if (json?.startsWith("{")) return json;
  throw new TypeError("the arguments of a call are one JSON object");
}
