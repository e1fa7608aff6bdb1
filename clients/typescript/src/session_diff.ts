// Compare two sessions, such as a fork with the session that it was forked from.

import { type CopiedBeginning, findDivergence } from "./divergence.js";
import { type Entry, entryView } from "./entries.js";
import { NotFound } from "./errors.js";
import {
  ContextMode,
  type ForkPoint as WireFork,
  type Session as WireSession,
} from "./gen/spawnmesh/session/v1/session_pb.js";
import { EntryKind, type Entry as WireEntry, LabelKind } from "./gen/spawnmesh/transcript/v1/entry_pb.js";
import type { Services } from "./services.js";

const MAX_ENTRIES = 1000;
const PAGE_SIZE = 200;
const LABELS_PAGE = 1000;

/** The place where two sessions, A and B, went apart. */
export interface SessionDiff {
  readonly sessionIdA: string;
  readonly sessionIdB: string;
  /** Neither has something that the other one has not. */
  readonly isEqual: boolean;
  /** The entries with which both begin. Headers, changes of the model and accepted answers do not count. */
  readonly commonCount: number;
  readonly commonMessageCount: number;
  /** The last common entry of each; 0 if there is none. */
  readonly commonSeqA: number;
  readonly commonSeqB: number;
  /** Messages at the beginning of the source alone: a fork copies the newest of a long session. */
  readonly leftOutCount: number;
  /** Where one was forked from the other, or the first such place of a third session. */
  readonly forkedAt: { readonly sessionId: string; readonly seq: number } | undefined;
  readonly onlyA: readonly Entry[];
  readonly onlyB: readonly Entry[];
  /** There are more entries than were asked for. */
  readonly isCutA: boolean;
  readonly isCutB: boolean;
  /** The ids of the drafts in `onlyA` and `onlyB` that were rejected. */
  readonly superseded: ReadonlySet<string>;
  /** The results of the newest runs. Empty for a run without one. */
  readonly answerA: string;
  readonly answerB: string;
}

/** Options of a comparison. */
export interface DiffOptions {
  /** The most entries of each session behind the common beginning. 1,000 by default. */
  readonly maxEntries?: number;
}

/** Compare two sessions of the tenant. Throws NotFound, and RangeError for a limit that is none. */
export async function diffSessions(
  services: Services,
  idA: string,
  idB: string,
  options: DiffOptions,
): Promise<SessionDiff> {
  const { maxEntries = MAX_ENTRIES } = options;
  if (!Number.isInteger(maxEntries) || maxEntries < 0) throw new RangeError(`maxEntries is ${maxEntries}`);
  const [a, b] = [await sessionOf(services, idA), await sessionOf(services, idB)];
  const found = await findDivergence(
    (seq) => entries(services, idA, seq),
    (seq) => entries(services, idB, seq),
    await copiedOf(services, a, b),
    maxEntries,
  );
  const fork = forkedAt(a, b);
  const { onlyA, onlyB, isCutA, isCutB, leftOutCount } = found;
  return {
    sessionIdA: idA,
    sessionIdB: idB,
    isEqual: onlyA.length + onlyB.length + leftOutCount === 0 && !isCutA && !isCutB,
    commonCount: found.commonCount,
    commonMessageCount: found.commonMessageCount,
    commonSeqA: Number(found.commonSeqA),
    commonSeqB: Number(found.commonSeqB),
    leftOutCount,
    forkedAt: fork && { sessionId: fork.sessionId, seq: Number(fork.seq) },
    onlyA: onlyA.map(entryView),
    onlyB: onlyB.map(entryView),
    ...{ isCutA, isCutB, superseded: found.superseded },
    answerA: a.latestRun?.resultText ?? "",
    answerB: b.latestRun?.resultText ?? "",
  };
}

async function sessionOf(services: Services, sessionId: string): Promise<WireSession> {
  const { session } = await services.session.getSession({ sessionId });
  if (session === undefined) throw new TypeError("the mesh answered without a session");
  return session;
}

/** Yield the entries. A session that exists has none before its transcript is created. */
async function* entries(
  services: Services,
  sessionId: string,
  afterSeq: bigint,
): AsyncGenerator<WireEntry, void> {
  const direction = { case: "afterSeq", value: afterSeq } as const;
  const request = { sessionId, direction, pageSize: PAGE_SIZE };
  let pageToken = "";
  do {
    let page;
    try {
      page = await services.transcript.listEntries({ ...request, pageToken });
    } catch (error) {
      if (error instanceof NotFound && pageToken === "" && afterSeq === 0n) return;
      throw error;
    }
    yield* page.entries;
    pageToken = page.nextPageToken;
  } while (pageToken !== "");
}

/** Return which of the sessions began with a copy of the other one, if one did. */
async function copiedOf(
  services: Services,
  a: WireSession,
  b: WireSession,
): Promise<CopiedBeginning | undefined> {
  for (const [source, copy, sourceIsA] of [[a, b, true] as const, [b, a, false] as const]) {
    if (sourceOf(copy) === source.sessionId) {
      const superseded = await supersededOf(services, source.sessionId);
      return { sourceIsA, upToSeq: copy.fork?.seq ?? 0n, superseded };
    }
  }
  return undefined;
}

/** A fork without a point copies the parent as it is at the spawn. */
function sourceOf({ fork, context, parentSessionId }: WireSession): string {
  if (fork !== undefined) return fork.sessionId;
  return context === ContextMode.FORK ? parentSessionId : "";
}

/** Return the ids of the drafts of a session that were superseded. */
async function supersededOf(services: Services, sessionId: string): Promise<ReadonlySet<string>> {
  const found = new Set<string>();
  const filter = { kinds: [EntryKind.LABEL] };
  const direction = { case: "afterSeq", value: 0n } as const;
  let pageToken = "";
  try {
    do {
      const request = { sessionId, direction, pageSize: LABELS_PAGE, filter, pageToken };
      const page = await services.transcript.listEntries(request);
      for (const { body } of page.entries) {
        const kind = body?.kind;
        if (kind?.case === "label" && kind.value.kind === LabelKind.SUPERSEDED) found.add(kind.value.entryId);
      }
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  } catch (error) {
    if (!(error instanceof NotFound)) throw error; // Its transcript is not created yet.
  }
  return found;
}

function forkedAt(a: WireSession, b: WireSession): WireFork | undefined {
  if (b.fork?.sessionId === a.sessionId) return b.fork;
  if (a.fork?.sessionId === b.sessionId) return a.fork;
  if (a.fork === undefined || b.fork === undefined || a.fork.sessionId !== b.fork.sessionId) return undefined;
  return b.fork.seq < a.fork.seq ? b.fork : a.fork;
}
