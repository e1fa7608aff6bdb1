// A session while it works: its states, the text of its answers as models give them, and its entries.

import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Connection } from "./connection.js";
import { type Entry, entryView } from "./entries.js";
import type {
  WatchSessionRequestSchema,
  WatchSessionResponse,
} from "./gen/spawnmesh/session/v1/session_service_pb.js";
import type { DraftDelta } from "./gen/spawnmesh/transcript/v1/live_event_pb.js";
import { present } from "./names.js";
import { continued } from "./retry.js";
import { eventView, type SessionEvent } from "./views.js";

/** An answer that is not an entry yet. */
interface Draft {
  readonly runId: string;
  /** Undefined if the rest of the answer comes from the stored entry. */
  readonly model: string | undefined;
  /** The event is the first one of an answer. */
  readonly beginsDraft: boolean;
}

/**
 * One event of `live`. `type` says which kind it is, and `sessionId` in which session it happened. Pass
 * `cursor` as `after` to continue behind it.
 */
export type LiveEvent = { readonly cursor: string; readonly sessionId: string } & (
  | { readonly type: "state"; readonly event: SessionEvent }
  /** Text of the answer that a model is giving. It follows the text of the same answer before it. */
  | (Draft & { readonly type: "text"; readonly text: string })
  /** Thinking of the model. It follows the thinking of the same answer before it. */
  | (Draft & { readonly type: "thinking"; readonly thinking: string })
  /** A part of a tool call. It follows the parts of the same answer before it, or begins another call. */
  | (Draft & {
      readonly type: "toolCall";
      readonly toolCallId: string;
      readonly name: string;
      /** JSON text to append to the arguments of the newest call. */
      readonly arguments: string;
      readonly beginsCall: boolean;
    })
  /** What came since the last `beginsDraft` of this session does not count. Take it back. */
  | { readonly type: "retracted"; readonly runId: string }
  | {
      readonly type: "entry";
      readonly entry: Entry;
      /** The entry is the answer that came before: it has exactly that. */
      readonly completesDraft: boolean;
    }
);

/** Options of `live`. */
export interface LiveOptions {
  /** The cursor of an earlier event. Without one, from the beginning of the session. */
  readonly after?: string;
  /** Yield the same of each session below this one, until all have ended. */
  readonly withDescendants?: boolean;
  readonly signal?: AbortSignal;
}

type Request = MessageInitShape<typeof WatchSessionRequestSchema>;

/** Yield what happens in the session behind the cursor. `Session.live` says more. */
export async function* live(
  connection: Connection,
  sessionId: string,
  options: LiveOptions,
): AsyncGenerator<LiveEvent, void, undefined> {
  const { after: cursor = "", withDescendants = false, signal } = options;
  const request = { sessionId, cursor, withTranscript: true, withDescendants };
  for await (const response of watch(connection, request, signal)) {
    const event = liveEvent(response);
    if (event !== undefined) yield event;
  }
}

/** Yield the events with a higher number. `Session.events` says more. */
export async function* sessionEvents(
  connection: Connection,
  sessionId: string,
  options: { after?: number; signal?: AbortSignal },
): AsyncGenerator<SessionEvent, void, undefined> {
  const request = { sessionId, afterEvent: BigInt(options.after ?? 0) };
  for await (const { event } of watch(connection, request, options.signal)) {
    if (event.case === "sessionEvent") yield eventView(event.value);
  }
}

/** Yield the responses, each once and in order. A stream that broke goes on behind its last cursor. */
async function* watch(
  { services, clock }: Connection,
  request: Request,
  signal?: AbortSignal,
): AsyncGenerator<WatchSessionResponse, void, undefined> {
  let left = request;
  const open = (attempt: AbortSignal) => services.session.watchSession(left, { signal: attempt });
  for await (const response of continued(open, clock, signal)) {
    left = { ...request, cursor: response.cursor, afterEvent: 0n };
    yield response;
  }
}

/** Return the view of a response; undefined for a kind that a newer service sends. */
function liveEvent({ cursor, sessionId, event }: WatchSessionResponse): LiveEvent | undefined {
  const where = { cursor, sessionId };
  switch (event.case) {
    case "sessionEvent":
      return { ...where, type: "state", event: eventView(event.value) };
    case "draftDelta":
      return draftEvent(where, event.value);
    case "draftRetracted":
      return { ...where, type: "retracted", runId: event.value.runId };
    case "entryAppended": {
      const { entry, completesDraft } = event.value;
      return entry && { ...where, type: "entry", entry: entryView(entry), completesDraft };
    }
    default:
      return undefined;
  }
}

function draftEvent(where: { cursor: string; sessionId: string }, delta: DraftDelta): LiveEvent | undefined {
  const { runId, model, beginsDraft, delta: part } = delta;
  const draft = { ...where, runId, model: present(model), beginsDraft };
  switch (part.case) {
    case "text":
      return { ...draft, type: "text", text: part.value };
    case "thinking":
      return { ...draft, type: "thinking", thinking: part.value };
    case "toolCall": {
      const { toolCallId, name, arguments: json, beginsCall } = part.value;
      return { ...draft, type: "toolCall", toolCallId, name, arguments: json, beginsCall };
    }
    default:
      return undefined;
  }
}
