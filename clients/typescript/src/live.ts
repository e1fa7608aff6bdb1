// A session while it works: its states, the text of its answers as models give them, and its entries.

import { type Entry, entryView } from "./entries.js";
import { NotFound } from "./errors.js";
import { SessionState } from "./gen/spawnmesh/session/v1/session_pb.js";
import type { WatchTranscriptResponse } from "./gen/spawnmesh/transcript/v1/live_service_pb.js";
import { present } from "./names.js";
import { type Clock, continued, PATIENCE_MS, Patience } from "./retry.js";
import type { Services } from "./services.js";
import type { SessionEvent } from "./views.js";

/** Between two looks for a transcript that is not there yet. */
const PAUSE_MS = 1_000;
const RUN_ENDS: readonly unknown[] = ["SUCCEEDED", "FAILED", "TIMED_OUT", "KILLED", "INTERRUPTED"];
const TERMINAL: readonly unknown[] = ["CLOSED", "SPAWN_FAILED"];

/** One event of `live`. `type` says which kind it is. Pass `cursor` as `after` to continue behind it. */
export type LiveEvent = { readonly cursor: string } & (
  | { readonly type: "state"; readonly event: SessionEvent }
  /** Text of the answer that a model is giving. It follows the text of the same answer before it. */
  | {
      readonly type: "text";
      readonly text: string;
      readonly runId: string;
      readonly model: string | undefined;
      /** The text is the first one of an answer. */
      readonly beginsDraft: boolean;
    }
  /** The text since the last `beginsDraft` does not count. Take it back. */
  | { readonly type: "retracted"; readonly runId: string }
  | {
      readonly type: "entry";
      readonly entry: Entry;
      /** The entry is the answer whose text came before: its text is exactly that. */
      readonly completesDraft: boolean;
    }
);

/** Options of `live`. */
export interface LiveOptions {
  /** The cursor of an earlier event. Without one, from the beginning of the session. */
  readonly after?: string;
  readonly signal?: AbortSignal;
}

/** What `live` needs of a session. */
export interface LiveSource {
  readonly sessionId: string;
  readonly services: Services;
  readonly clock: Clock;
  events(options: { afterCursor: number; signal: AbortSignal }): AsyncIterable<SessionEvent>;
}

/** An event of the session, or its end, that comes once the entries up to `seq` have come. */
interface Held {
  readonly event: SessionEvent | undefined;
  readonly seq: bigint;
}

/** Yield what happens in the session behind the cursor. `Session.live` says more. */
export async function* live(
  source: LiveSource,
  options: LiveOptions,
): AsyncGenerator<LiveEvent, void, undefined> {
  const feed = new Feed(options.after ?? "");
  const left = new AbortController();
  const signal = options.signal ? AbortSignal.any([options.signal, left.signal]) : left.signal;
  const inbox = new Inbox();
  void inbox.fill(source.events({ afterCursor: feed.eventCursor, signal }), "event");
  void inbox.fill(responses(source, feed.transcriptCursor, signal), "response");
  const held: Held[] = [];
  let readSeq = 0n;
  let isComplete = false;
  try {
    for (;;) {
      const news = await inbox.take();
      if (news.type === "response") {
        readSeq = news.value.readSeq;
        yield* feed.take(news.value);
      } else if (news.type === "event") {
        held.push({ event: news.value, seq: isEnd(news.value) ? await headSeq(source, signal) : 0n });
      } else if (news.of === "event" && news.error === undefined) {
        held.push({ event: undefined, seq: await headSeq(source, signal) });
      } else if (news.error === undefined) {
        isComplete = true;
      } else {
        throw news.error;
      }
      for (let first = held[0]; first && (isComplete || readSeq >= first.seq); first = held[0]) {
        held.shift();
        yield* feed.takeEvent(first.event);
        if (first.event === undefined || TERMINAL.includes(first.event.type)) return;
      }
    }
  } finally {
    left.abort(); // Otherwise the streams stay open when the loop is left.
  }
}

function isEnd({ type, runState }: SessionEvent): boolean {
  return RUN_ENDS.includes(runState) || TERMINAL.includes(type);
}

/**
 * Yield the responses behind the cursor. Wait for the transcript of a session that is being spawned. End
 * if the spawn has failed. Throws NotFound if the transcript was deleted.
 */
async function* responses(
  { services, sessionId, clock }: LiveSource,
  after: string,
  signal: AbortSignal,
): AsyncGenerator<WatchTranscriptResponse, void, undefined> {
  let cursor = after;
  const open = (attempt: AbortSignal) =>
    services.live.watchTranscript({ sessionId, cursor }, { signal: attempt });
  for (let isSpawned = false; ; ) {
    try {
      for await (const response of continued(open, clock, signal)) {
        cursor = response.cursor;
        yield response;
      }
    } catch (error) {
      if (!(error instanceof NotFound)) throw error;
      const state = (await services.session.getSession({ sessionId }, { signal })).session?.state;
      if (state === SessionState.SPAWN_FAILED) return;
      if (isSpawned || (cursor !== "" && state !== SessionState.PROVISIONING)) throw error;
      isSpawned = state !== SessionState.PROVISIONING; // Perhaps it was spawned after the attempt.
    }
    await clock.sleep(PAUSE_MS, signal);
  }
}

/** Return the seq of the newest entry, 0 without a transcript. */
async function headSeq({ services, sessionId, clock }: LiveSource, signal: AbortSignal): Promise<bigint> {
  const patience = new Patience(PATIENCE_MS, clock);
  const direction = { case: "beforeSeq", value: 0n } as const;
  for (;;) {
    patience.begin();
    try {
      const page = await services.transcript.listEntries({ sessionId, direction, pageSize: 1 }, { signal });
      return page.head?.seq ?? 0n;
    } catch (error) {
      if (error instanceof NotFound) return 0n;
      await patience.waitBeforeNext(error, signal);
    }
  }
}

type News =
  | { readonly type: "event"; readonly value: SessionEvent }
  | { readonly type: "response"; readonly value: WatchTranscriptResponse }
  | { readonly type: "over"; readonly of: "event" | "response"; readonly error: unknown };

/** What two streams bring. Each waits until its newest message is taken. */
class Inbox {
  readonly #news: { news: News; taken: () => void }[] = [];
  #wake: () => void = () => {};

  fill(stream: AsyncIterable<SessionEvent>, type: "event"): Promise<void>;
  fill(stream: AsyncIterable<WatchTranscriptResponse>, type: "response"): Promise<void>;
  async fill(stream: AsyncIterable<unknown>, type: "event" | "response"): Promise<void> {
    let error: unknown;
    try {
      for await (const value of stream) await this.#put({ type, value } as News);
    } catch (failure) {
      error = failure;
    }
    await this.#put({ type: "over", of: type, error });
  }

  async take(): Promise<News> {
    for (;;) {
      const next = this.#news.shift();
      if (next !== undefined) {
        next.taken();
        return next.news;
      }
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  #put(news: News): Promise<void> {
    return new Promise<void>((taken) => {
      this.#news.push({ news, taken });
      this.#wake();
    });
  }
}

/** The position of a watcher in both streams, and the run whose draft is open. */
class Feed {
  eventCursor = 0;
  transcriptCursor = "";
  #openRunId: string | undefined;
  readonly #endedRunIds = new Set<string>();

  constructor(cursor: string) {
    if (cursor === "") return;
    const parts = /^(\d{1,15})\.([\w-]*)(?:\.(\w+))?$/.exec(cursor);
    if (parts === null) throw new TypeError("`after` is no cursor of an event of `live`");
    this.eventCursor = Number(parts[1]);
    this.transcriptCursor = parts[2] ?? "";
    this.#openRunId = parts[3];
  }

  *take(response: WatchTranscriptResponse): Generator<LiveEvent> {
    this.transcriptCursor = response.cursor;
    const { event } = response;
    if (event.case === "draftDelta") {
      const { runId, model, text, beginsDraft } = event.value;
      const isKnown = beginsDraft ? !this.#endedRunIds.has(runId) : this.#openRunId === runId;
      if (!isKnown) return; // The run has ended, and its draft was retracted.
      this.#openRunId = runId;
      yield { type: "text", text, runId, model: present(model), beginsDraft, cursor: this.#cursor };
    } else if (event.case === "draftRetracted") {
      yield* this.#retract();
    } else if (event.case === "entryAppended" && event.value.entry !== undefined) {
      const entry = entryView(event.value.entry);
      const completesDraft = event.value.completesDraft && this.#openRunId !== undefined;
      if (completesDraft) this.#openRunId = undefined;
      yield { type: "entry", entry, completesDraft, cursor: this.#cursor };
    }
  }

  /** Take the next event, or the end of the session. All entries before it were taken. */
  *takeEvent(event: SessionEvent | undefined): Generator<LiveEvent> {
    const isOver = event === undefined || TERMINAL.includes(event.type);
    // No entry completes the draft any more. If the runner was lost, the service may keep the draft.
    if (isOver || (isEnd(event) && event.runId === this.#openRunId)) yield* this.#retract();
    if (event === undefined) return;
    if (isEnd(event) && event.runId !== undefined) this.#endedRunIds.add(event.runId);
    this.eventCursor = event.cursor;
    yield { type: "state", event, cursor: this.#cursor };
  }

  *#retract(): Generator<LiveEvent> {
    const runId = this.#openRunId;
    if (runId === undefined) return;
    this.#openRunId = undefined;
    yield { type: "retracted", runId, cursor: this.#cursor };
  }

  get #cursor(): string {
    const open = this.#openRunId === undefined ? "" : `.${this.#openRunId}`;
    return `${this.eventCursor}.${this.transcriptCursor}${open}`;
  }
}
