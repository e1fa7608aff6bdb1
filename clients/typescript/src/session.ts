// One session: its events, its result, and what a client does with it.

import { durationFromMs } from "@bufbuild/protobuf/wkt";
import {
  type BudgetChange,
  budgetMessage,
  budgetView,
  changedPaths,
  type SessionBudget,
  type SessionUsage,
  sessionUsageView,
} from "./budgets.js";
import type { Connection } from "./connection.js";
import { downloadFile } from "./downloads.js";
import { type Entry, entryView } from "./entries.js";
import { MeshError, ResultTimeout, RunFailed } from "./errors.js";
import {
  type Session as WireSession,
  SessionView as WireView,
} from "./gen/spawnmesh/session/v1/session_pb.js";
import { type LiveEvent, type LiveOptions, live, sessionEvents } from "./live.js";
import { newRequestId } from "./request_id.js";
import { PATIENCE_MS, Patience } from "./retry.js";
import { type SearchHit, type SearchOptions, type SearchQuery, search } from "./search.js";
import type { Services } from "./services.js";
import type { OnProgress } from "./transfers.js";
import {
  type AttachedFile,
  type OutputSet,
  outputSetView,
  type RunView,
  runView,
  type SessionEvent,
  type SessionView,
  sessionView,
} from "./views.js";

/** A longer wait is split into several calls, so that no proxy takes it for dead. */
const WAIT_CALL_MS = 60_000;
const ANSWER_MS = 10_000;
const DELETE_MS = 60_000;
const ENTRIES_PAGE = 200;
const OUTPUTS_PAGE = 100;

/** The answer of a session. */
export interface RunResult {
  readonly text: string;
  readonly run: RunView;
  readonly traceId: string;
}

/** Options of `interrupt`. */
export interface InterruptOptions {
  /** What the run reads next, so that it goes on with that. Without it, the run ends. */
  readonly text?: string;
  /** The run to interrupt, by default the live one. */
  readonly runId?: string;
  /** The id of the message: the same one again changes nothing. Without one a new id is drawn. */
  readonly requestId?: string;
  readonly signal?: AbortSignal;
}

/** Options of `outputs`. */
export interface OutputsOptions {
  /** Only the files that this run has published. */
  readonly runId?: string;
  readonly signal?: AbortSignal;
}

/** A file that a run has published, with its bytes. */
export interface PublishedFile extends AttachedFile {
  readonly setId: string;
  readonly runId: string;
  readonly data: Uint8Array;
}

/** A session. Its properties are as the mesh last answered: `refresh` gets them anew. */
export class Session {
  readonly id: string;
  /** Everything that the mesh said of the session. */
  view: SessionView;
  readonly #connection: Connection;

  /** Sessions are made by `mesh.spawn`, `mesh.session` and `mesh.sessions`. */
  constructor(connection: Connection, session: WireSession | undefined) {
    this.#connection = connection;
    this.view = viewed(session);
    this.id = this.view.sessionId;
  }

  get state(): SessionView["state"] {
    return this.view.state;
  }
  get agentId(): string {
    return this.view.agentId;
  }
  get label(): string | undefined {
    return this.view.label;
  }
  get latestRun(): RunView | undefined {
    return this.view.latestRun;
  }
  get traceId(): string {
    return this.view.traceId;
  }

  /** Get the session as it is now. */
  async refresh(): Promise<this> {
    this.view = viewed((await this.wire.getSession({ sessionId: this.id })).session);
    return this;
  }

  /**
   * Yield the events with a number above `after`, each once and in order, until the session has ended. A
   * broken connection or a restart of the service is survived; throws after a minute without an answer.
   * Leave the loop, or abort the signal, to end the watch. To continue in another program, pass the
   * `number` of the last event.
   */
  events(
    options: { after?: number; signal?: AbortSignal } = {},
  ): AsyncGenerator<SessionEvent, void, undefined> {
    return sessionEvents(this.#connection, this.id, options);
  }

  /**
   * Yield the events of the session, the text of its answers while models give them, and the entries of
   * its transcript, each once and in order, until the session has ended.
   *
   * The text of an answer is followed by the entry that has exactly this text, with `completesDraft`, or by
   * `retracted`. The end of a run comes behind all its entries. A tenant that masks secrets has no such
   * text: its answers come as entries alone.
   *
   * With descendants, it yields the same of each session below this one, until all have ended. `sessionId`
   * says of which. That of a session begins behind its CHILD_SPAWNED; there is no other order between two
   * sessions.
   *
   * A broken connection or a restart of a service is survived; throws after a minute without an answer.
   * Leave the loop, or abort the signal, to end the watch. To continue in another program, pass the last
   * `cursor` as `after`.
   *
   * Throws NotFound when the session is deleted, and InvalidArgument for a text that is no cursor of such a
   * watch of this session.
   */
  live(options: LiveOptions = {}): AsyncGenerator<LiveEvent, void, undefined> {
    return live(this.#connection, this.id, options);
  }

  /**
   * Wait until the newest run has ended, and return its answer. Throws RunFailed if it has none,
   * ResultTimeout if it does not end in time, and a MeshError if the mesh does not answer. The wait goes on
   * while the run waits for an approval or its budget: after a ResultTimeout, `latestRun` has its
   * `approvalId` or `budgetSessionId`.
   */
  async result(options: { timeoutMs?: number; signal?: AbortSignal } = {}): Promise<RunResult> {
    const { signal, timeoutMs = Number.POSITIVE_INFINITY } = options;
    const { clock } = this.#connection;
    const patience = new Patience(Math.min(PATIENCE_MS, timeoutMs), clock);
    const end = clock.now() + timeoutMs;
    for (;;) {
      const left = Math.max(0, end - clock.now());
      const part = Math.min(left, WAIT_CALL_MS);
      const request = { sessionId: this.id, timeout: durationFromMs(Math.round(part)) };
      patience.begin();
      let isDone: boolean;
      try {
        const call = { timeoutMs: part + ANSWER_MS, ...(signal && { signal }) };
        const answer = await this.wire.waitSession(request, call);
        this.view = viewed(answer.session);
        isDone = answer.done;
      } catch (error) {
        await patience.waitBeforeNext(error, signal);
        continue;
      }
      patience.answered();
      if (isDone) return resultOf(this.view);
      if (part === left) throw new ResultTimeout(this.id, timeoutMs);
    }
  }

  /**
   * Send a message, and return the run that will read it. The same `requestId` again changes nothing;
   * without one a new id is drawn.
   */
  async send(text: string, options: { requestId?: string; signal?: AbortSignal } = {}): Promise<RunView> {
    const request = { sessionId: this.id, text, requestId: options.requestId ?? newRequestId() };
    const { run } = await this.wire.sendMessage(request, options.signal && { signal: options.signal });
    if (run === undefined) throw new TypeError("the mesh answered without a run");
    return runView(run);
  }

  /**
   * Stop the live run, or the one of `runId`, and leave the session open.
   *
   * Without `text`, the run ends as INTERRUPTED at its next safe point, and what it has said stays in the
   * transcript. A session of the mode RUN closes with it. Until then the run has an `interruptTime`. A run
   * that has ended before is returned as it is, and undefined if the session never had one. Give a `runId`
   * if a repeat must not meet a later run.
   *
   * With `text`, the run goes on: it stops its turn and reads this message next. Return the run that will
   * read it. `requestId` is as for `send`.
   *
   * Throws NotFound if the session has no such run, and Aborted if the run takes long to end with its
   * answer. With `text`, also FailedPrecondition SESSION_CLOSED, or RUN_STATE if that run is not live.
   */
  async interrupt(options: InterruptOptions = {}): Promise<RunView | undefined> {
    const { text = "", runId = "", signal } = options;
    const requestId = text === "" ? "" : (options.requestId ?? newRequestId());
    const request = { sessionId: this.id, runId, requestId, text };
    const { run } = await this.wire.interruptRun(request, signal && { signal });
    return run && runView(run);
  }

  /** End the session and its descendants. Return the number of killed runs. */
  async kill(): Promise<number> {
    return (await this.wire.killSession({ sessionId: this.id })).killedRunCount;
  }

  /** Archive the ended session and its descendants. Return their number. */
  async archive(): Promise<number> {
    const answer = await this.wire.archiveSession({ sessionId: this.id });
    this.view = viewed(answer.session);
    return answer.archivedSessionCount;
  }

  /** Kill and delete the session and its descendants, with transcripts and files. Return their number. */
  async delete(): Promise<number> {
    const answer = await this.wire.deleteSession({ sessionId: this.id }, { timeoutMs: DELETE_MS });
    return answer.deletedSessionCount;
  }

  /**
   * Return what the session and its descendants have used, and the budgets that they share. Runs that have
   * not ended count in the budgets only.
   */
  async usage(): Promise<SessionUsage> {
    return sessionUsageView(await this.#connection.services.budget.getSessionUsage({ sessionId: this.id }));
  }

  /**
   * Change the limits that are named, and return the budget. null removes a limit. Runs that wait for the
   * budget go on within a second if there is room. With the `etag` of the budget on which the change is
   * based, no other change is overwritten.
   *
   * Throws FailedPrecondition BUDGET_MISSING if the session was spawned without a budget, and
   * BUDGET_BELOW_USAGE for a limit below what is used; Aborted ETAG_DIFFERS; and TypeError for a limit that
   * is 0 or negative.
   */
  async setBudget(change: BudgetChange, options: { etag?: string } = {}): Promise<SessionBudget> {
    const { budget } = await this.#connection.services.budget.updateBudget({
      sessionId: this.id,
      budget: budgetMessage(change),
      updateMask: { paths: changedPaths(change) },
      etag: options.etag ?? "",
    });
    if (budget === undefined) throw new TypeError("the mesh answered without a budget");
    return budgetView(budget);
  }

  /**
   * Yield the files that runs of the session have published, in the order in which they were published.
   * `mesh.files.download(set.setId, name)` downloads one of them, and a spawn takes them as `attachments`
   * by `setId` and `name`. Pages are fetched as needed.
   */
  async *outputs(options: OutputsOptions = {}): AsyncGenerator<OutputSet, void, undefined> {
    const { runId = "", signal } = options;
    const request = { sessionId: this.id, runId, pageSize: OUTPUTS_PAGE };
    let pageToken = "";
    do {
      const page = await this.wire.listOutputSets({ ...request, pageToken }, signal && { signal });
      yield* page.outputSets.map(outputSetView);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /**
   * Download the files that runs of the session have published, and yield each one when it is complete and
   * has the recorded hash. One file at a time is held in memory. A later file can have the name of an
   * earlier one: it is the newer version. The agent chose the names: save the files of each set in a
   * directory of its own.
   *
   * Throws what `mesh.files.download` throws. FailedPrecondition ATTACHMENT_SET_STATE for sets that were
   * released comes after the files of all others.
   */
  async *downloadOutputs(
    options: OutputsOptions & { readonly onProgress?: OnProgress } = {},
  ): AsyncGenerator<PublishedFile, void, undefined> {
    const { onProgress, signal } = options;
    const { services, clock } = this.#connection;
    const context = { blobs: services.attachmentBlob, clock, onProgress, signal };
    let released: MeshError | undefined;
    for await (const { setId, runId, files } of this.outputs(options)) {
      for (const file of files) {
        let data: Uint8Array;
        try {
          data = await downloadFile(context, setId, file);
        } catch (error) {
          if (!(error instanceof MeshError && error.reason === "ATTACHMENT_SET_STATE")) throw error;
          released ??= error;
          break;
        }
        yield { ...file, setId, runId, data };
      }
    }
    if (released !== undefined) throw released;
  }

  /**
   * Yield the places of the transcript that have these words, or match a pattern, newest first:
   * `session.search("pump repaired")`, `session.search({ pattern: "P-\\d+" })`. With descendants, those of
   * the sessions below follow. Pages are fetched as needed. The first search of a long transcript waits
   * until it is indexed.
   *
   * Throws InvalidArgument SEARCH_REFUSED for a search that the mesh does not run.
   */
  search(query: SearchQuery, options: SearchOptions = {}): AsyncGenerator<SearchHit, void, undefined> {
    return search(this.#connection, this.id, query, options);
  }

  /** Yield the sessions that runs of this one have spawned, newest first. Pages are fetched as needed. */
  async *children(): AsyncGenerator<Session, void, undefined> {
    const request = { filter: `parent_session_id = ${this.id}`, view: WireView.FULL };
    let pageToken = "";
    do {
      const page = await this.wire.listSessions({ ...request, pageToken });
      yield* page.sessions.map((child) => new Session(this.#connection, child));
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /** Yield every entry of the transcript after `afterSeq`. Pages are fetched as needed. */
  async *transcript(options: { afterSeq?: number } = {}): AsyncGenerator<Entry, void, undefined> {
    const value = BigInt(options.afterSeq ?? 0);
    const direction = { case: "afterSeq", value } as const;
    const request = { sessionId: this.id, direction, pageSize: ENTRIES_PAGE };
    let pageToken = "";
    do {
      const page = await this.#connection.services.transcript.listEntries({ ...request, pageToken });
      yield* page.entries.map(entryView);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  private get wire(): Services["session"] {
    return this.#connection.services.session;
  }
}

function viewed(session: WireSession | undefined): SessionView {
  if (session === undefined) throw new TypeError("the mesh answered without a session");
  return sessionView(session);
}

function resultOf(session: SessionView): RunResult {
  const { latestRun: run, sessionId, traceId } = session;
  if (run?.state === "SUCCEEDED") return { text: run.resultText ?? "", run, traceId };
  switch (run?.state) {
    case "FAILED":
    case "TIMED_OUT":
    case "KILLED":
    case "INTERRUPTED": {
      const reason = run.errorReason ?? run.state;
      const message = run.errorMessage ?? `the run ended as ${run.state}`;
      throw new RunFailed({ reason, message, state: run.state, sessionId, runId: run.runId, traceId });
    }
  }
  const reason = session.failureReason ?? session.state;
  const message = `the session has no run: it is ${session.state}`;
  throw new RunFailed({ reason, message, state: "SPAWN_FAILED", sessionId, runId: undefined, traceId });
}
