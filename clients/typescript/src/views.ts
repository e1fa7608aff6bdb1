// The results of the client: plain values instead of messages of the contracts. Enums are strings, times
// are dates, sizes and counts are numbers, and what is absent is undefined.

import {
  type AttachmentFile as WireFile,
  type AttachmentSet as WireSet,
  SetState as WireSetState,
} from "./gen/spawnmesh/attachment_blob/v1/attachment_pb.js";
import type { TokenUsage as WireUsage } from "./gen/spawnmesh/content/v1/message_pb.js";
import { ThinkingLevel as WireThinking } from "./gen/spawnmesh/content/v1/thinking_pb.js";
import {
  type AttachmentReceipt as WireReceipt,
  Cleanup as WireCleanup,
  ContextMode as WireContext,
  ReceiptWarning as WireWarning,
  type Run as WireRun,
  RunState as WireRunState,
  Runtime as WireRuntime,
  type Session as WireSession,
  type SessionEvent as WireEvent,
  SessionEventKind as WireEventKind,
  SessionMode as WireMode,
  SessionState as WireSessionState,
} from "./gen/spawnmesh/session/v1/session_pb.js";
import type { OutputSet as WireOutputSet } from "./gen/spawnmesh/session/v1/output_pb.js";
import { Reason as WireReason } from "./gen/spawnmesh/errors/v1/reason_pb.js";
import type { Reason } from "./errors.js";
import { chosenName, dateOf, type NameIn, nameOf, present } from "./names.js";

export type SessionState = NameIn<typeof WireSessionState>;
export type SessionMode = NameIn<typeof WireMode>;
export type ContextMode = NameIn<typeof WireContext>;
export type Cleanup = NameIn<typeof WireCleanup>;
export type Runtime = NameIn<typeof WireRuntime>;
export type RunState = NameIn<typeof WireRunState>;
export type SessionEventType = NameIn<typeof WireEventKind>;
export type SetState = NameIn<typeof WireSetState>;
export type ThinkingLevel = NameIn<typeof WireThinking>;

/** A session as it was when the mesh last answered. */
export interface SessionView {
  readonly sessionId: string;
  readonly state: SessionState;
  readonly agentId: string;
  readonly label: string | undefined;
  /** What the caller of the spawn gave, for its own use. */
  readonly metadata: Readonly<Record<string, string>>;
  /** The version of the agent when the session was spawned. */
  readonly agentVersion: number;
  readonly parentSessionId: string | undefined;
  readonly parentRunId: string | undefined;
  readonly depth: number;
  readonly mode: SessionMode;
  readonly context: ContextMode;
  readonly cleanup: Cleanup;
  readonly runtime: Runtime;
  readonly thinking: ThinkingLevel | undefined;
  readonly createTime: Date | undefined;
  readonly endTime: Date | undefined;
  readonly archiveTime: Date | undefined;
  readonly latestRun: RunView | undefined;
  readonly receipt: AttachmentReceipt | undefined;
  /** The entry at which the session was forked, if the spawn named one. */
  readonly fork: ForkPoint | undefined;
  /** The sessions whose budgets it shares: its ancestors, the outermost first, and itself. */
  readonly budgetSessionIds: readonly string[];
  readonly taskHash: string;
  readonly traceId: string;
  /** The reason, if the state is SPAWN_FAILED. */
  readonly failureReason: Reason | undefined;
}

/** One run of a session. */
export interface RunView {
  readonly runId: string;
  readonly sessionId: string;
  readonly state: RunState;
  readonly attemptCount: number;
  readonly revisionCount: number;
  /** The answer, if the state is SUCCEEDED. */
  readonly resultText: string | undefined;
  readonly errorReason: Reason | undefined;
  readonly errorMessage: string | undefined;
  readonly usage: TokenUsage;
  readonly queueTime: Date | undefined;
  readonly startTime: Date | undefined;
  readonly endTime: Date | undefined;
  /** When the run was asked to end. It is INTERRUPTED at its next safe point. */
  readonly interruptTime: Date | undefined;
  /** The approval for which the run waits, if the state is WAITING_APPROVAL. See `mesh.approvals`. */
  readonly approvalId: string | undefined;
  /**
   * The session whose budget is used up, if the state is WAITING_BUDGET: that of the run, or an ancestor.
   * Its `setBudget` lets the run go on.
   */
  readonly budgetSessionId: string | undefined;
  /** The last time that something the run needs was unavailable. */
  readonly delay: RunDelay | undefined;
  /** The number of files that the run has published. See `session.outputs`. */
  readonly outputFileCount: number;
  /** The sum of their sizes. */
  readonly outputTotalBytes: number;
  /** The number of models that failed and of decisions of plugins, as runners reported them. */
  readonly reportedEventCount: number;
}

export interface RunDelay {
  readonly reason: Reason;
  readonly message: string;
  readonly notBeforeTime: Date | undefined;
  readonly count: number;
}

export interface TokenUsage {
  /** The cost in units of the currency of the mesh. */
  readonly cost: number;
  /** The version of the price table. Of a sum: that of the last model call. */
  readonly priceVersion: string | undefined;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly cacheReadTokens: number;
  readonly cacheWriteTokens: number;
}

/** The entry of another session up to which a session begins with a copy. */
export interface ForkPoint {
  readonly sessionId: string;
  readonly seq: number;
}

/** The receipt of the files of a spawn. */
export interface AttachmentReceipt {
  readonly setId: string;
  readonly totalBytes: number;
  readonly files: readonly AttachedFile[];
  /** Where the run finds the files, relative to its workspace. */
  readonly relDir: string;
  readonly mountPath: string | undefined;
  readonly warnings: readonly NameIn<typeof WireWarning>[];
}

export interface AttachedFile {
  readonly name: string;
  readonly sizeBytes: number;
  readonly sha256: string;
  readonly mimeType: string | undefined;
}

/** The files that were attached to one session, or that a run published. */
export interface AttachmentSet {
  readonly setId: string;
  readonly sessionId: string;
  /** The files of a RELEASED set can no longer be read. */
  readonly state: SetState;
  readonly files: readonly AttachedFile[];
  readonly totalBytes: number;
  readonly createTime: Date | undefined;
  /**
   * The run that stored the files to publish them: `session.outputs` has those that are published.
   * Undefined for the attachments of a spawn.
   */
  readonly runId: string | undefined;
}

/** Files that a run published in one call. */
export interface OutputSet {
  readonly setId: string;
  readonly sessionId: string;
  readonly runId: string;
  /** The id of the call that published them. */
  readonly requestId: string;
  readonly files: readonly AttachedFile[];
  readonly totalBytes: number;
  readonly publishTime: Date | undefined;
}

/** An event in the life of a session. */
export interface SessionEvent {
  /** The place of the event in the session, from 1. Pass it to `events` as `after` to continue behind it. */
  readonly number: number;
  readonly type: SessionEventType;
  readonly time: Date | undefined;
  readonly runId: string | undefined;
  /** The state that the run reached. */
  readonly runState: RunState | undefined;
  /** The child, if the type is CHILD_SPAWNED or CHILD_ANNOUNCED. */
  readonly childSessionId: string | undefined;
  /** The output set, if the type is FILES_PUBLISHED. */
  readonly setId: string | undefined;
  /** One line for people. */
  readonly detail: string;
}

export function sessionView(session: WireSession): SessionView {
  return {
    sessionId: session.sessionId,
    state: nameOf(WireSessionState, session.state),
    agentId: session.agentId,
    label: present(session.label),
    metadata: { ...session.metadata },
    agentVersion: Number(session.agentVersion),
    parentSessionId: present(session.parentSessionId),
    parentRunId: present(session.parentRunId),
    depth: session.depth,
    mode: nameOf(WireMode, session.mode),
    context: nameOf(WireContext, session.context),
    cleanup: nameOf(WireCleanup, session.cleanup),
    runtime: nameOf(WireRuntime, session.runtime),
    thinking: chosenName(WireThinking, session.thinking),
    createTime: dateOf(session.createTime),
    endTime: dateOf(session.endTime),
    archiveTime: dateOf(session.archiveTime),
    latestRun: session.latestRun && runView(session.latestRun),
    receipt: session.receipt && receiptView(session.receipt),
    fork: session.fork && { sessionId: session.fork.sessionId, seq: Number(session.fork.seq) },
    budgetSessionIds: [...session.budgetSessionIds],
    taskHash: session.taskHash,
    traceId: session.traceId,
    failureReason: chosenName(WireReason, session.failureReason),
  };
}

export function runView(run: WireRun): RunView {
  const state = nameOf(WireRunState, run.state);
  return {
    runId: run.runId,
    sessionId: run.sessionId,
    state,
    attemptCount: run.attemptCount,
    revisionCount: run.revisionCount,
    resultText: state === "SUCCEEDED" ? run.resultText : undefined,
    errorReason: chosenName(WireReason, run.errorReason),
    errorMessage: present(run.errorMessage),
    usage: usageView(run.usage),
    queueTime: dateOf(run.queueTime),
    startTime: dateOf(run.startTime),
    endTime: dateOf(run.endTime),
    interruptTime: dateOf(run.interruptTime),
    approvalId: present(run.approvalId),
    budgetSessionId: present(run.budgetSessionId),
    outputFileCount: run.outputFileCount,
    outputTotalBytes: Number(run.outputTotalBytes),
    reportedEventCount: Number(run.reportedEventCount),
    delay: run.delay && {
      reason: nameOf(WireReason, run.delay.reason),
      message: run.delay.message,
      notBeforeTime: dateOf(run.delay.notBeforeTime),
      count: run.delay.count,
    },
  };
}

export function usageView(usage: WireUsage | undefined): TokenUsage {
  return {
    cost: Number(usage?.costMicros ?? 0) / 1_000_000,
    priceVersion: present(usage?.priceVersion ?? ""),
    inputTokens: Number(usage?.inputTokenCount ?? 0),
    outputTokens: Number(usage?.outputTokenCount ?? 0),
    cacheReadTokens: Number(usage?.cacheReadTokenCount ?? 0),
    cacheWriteTokens: Number(usage?.cacheWriteTokenCount ?? 0),
  };
}

export function eventView(event: WireEvent): SessionEvent {
  return {
    number: Number(event.number),
    type: nameOf(WireEventKind, event.kind),
    time: dateOf(event.eventTime),
    runId: present(event.runId),
    runState: chosenName(WireRunState, event.runState),
    childSessionId: present(event.childSessionId),
    setId: present(event.setId),
    detail: event.detail,
  };
}

export function setView(set: WireSet): AttachmentSet {
  return {
    setId: set.setId,
    sessionId: set.sessionId,
    state: nameOf(WireSetState, set.state),
    files: set.files.map(fileView),
    totalBytes: Number(set.totalBytes),
    createTime: dateOf(set.createTime),
    runId: present(set.runId),
  };
}

export function outputSetView(set: WireOutputSet): OutputSet {
  return {
    setId: set.setId,
    sessionId: set.sessionId,
    runId: set.runId,
    requestId: set.requestId,
    files: set.files.map(fileView),
    totalBytes: Number(set.totalBytes),
    publishTime: dateOf(set.publishTime),
  };
}

function receiptView(receipt: WireReceipt): AttachmentReceipt {
  return {
    setId: receipt.setId,
    totalBytes: Number(receipt.totalBytes),
    files: receipt.files.map(fileView),
    relDir: receipt.relDir,
    mountPath: present(receipt.mountPath),
    warnings: receipt.warnings.map((warning) => nameOf(WireWarning, warning)),
  };
}

function fileView(file: WireFile): AttachedFile {
  return {
    name: file.name,
    sizeBytes: Number(file.sizeBytes),
    sha256: file.sha256,
    mimeType: present(file.mimeType),
  };
}
