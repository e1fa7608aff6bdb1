// Searches of transcripts.

import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { Connection } from "./connection.js";
import { Role as WireRole } from "./gen/spawnmesh/content/v1/message_pb.js";
import { EntryKind as WireKind } from "./gen/spawnmesh/transcript/v1/entry_pb.js";
import type { SearchHit as WireHit } from "./gen/spawnmesh/transcript/v1/search_service_pb.js";
import type { Role } from "./entries.js";
import { MeshError } from "./errors.js";
import { dateOf, type NameIn, nameOf, present, valueOf } from "./names.js";
import { PATIENCE_MS, Patience } from "./retry.js";

const PAGE_SIZE = 50;
const SEARCH_MS = 60_000;

export type EntryKind = NameIn<typeof WireKind>;

/**
 * The query: words that an entry must all have, or a regular expression in the syntax of RE2. Words in
 * "double quotes" are adjacent, -word must not occur, and word* is a beginning.
 */
export type SearchQuery = string | { readonly pattern: string };

/** Options of a search. Hits fulfil all that are given. */
export interface SearchOptions {
  /** Search the sessions below, too. */
  readonly withDescendants?: boolean;
  /** Only entries of these kinds. Messages, notes and summaries by default. */
  readonly kinds?: readonly EntryKind[];
  /** Only messages of these roles. */
  readonly roles?: readonly Role[];
  /** Entries at this time or later. */
  readonly since?: Date;
  /** Entries before this time. */
  readonly before?: Date;
  /** The largest number of hits. All of them by default. */
  readonly limit?: number;
  readonly signal?: AbortSignal;
}

/** A place in a transcript that a search found. */
export interface SearchHit {
  readonly sessionId: string;
  readonly entryId: string;
  readonly seq: number;
  readonly kind: EntryKind;
  readonly createTime: Date | undefined;
  /** The field of the entry that has the text, such as `message.content[2].text.text`. */
  readonly path: string;
  /** Where the match begins in that text, as UTF-8. */
  readonly byteOffset: number;
  /** The match with the text around it. */
  readonly snippet: string;
  /** The file that has the text, if it is a long output. */
  readonly fileId: string | undefined;
}

/** Yield the hits of a search, as `Session.search` does. */
export async function* search(
  { services, clock }: Connection,
  sessionId: string,
  query: SearchQuery,
  options: SearchOptions,
): AsyncGenerator<SearchHit, void, undefined> {
  const { kinds = [], roles = [], since, before, limit = Number.POSITIVE_INFINITY, signal } = options;
  const asked =
    typeof query === "string"
      ? ({ case: "words", value: query } as const)
      : ({ case: "pattern", value: query.pattern } as const);
  const request = {
    sessionId,
    withDescendants: options.withDescendants ?? false,
    query: asked,
    filter: {
      kinds: kinds.map((kind) => valueOf(WireKind, kind)),
      roles: roles.map((role) => valueOf(WireRole, role)),
    },
    ...(since && { fromTime: timestampFromDate(since) }),
    ...(before && { beforeTime: timestampFromDate(before) }),
    pageSize: Math.min(limit, PAGE_SIZE),
  };
  const patience = new Patience(PATIENCE_MS, clock);
  const call = { timeoutMs: SEARCH_MS, ...(signal && { signal }) };
  let pageToken = "";
  let found = 0;
  let indexedSeq = -1;
  for (;;) {
    patience.begin();
    let page: { hits: WireHit[]; nextPageToken: string };
    try {
      page = await services.search.searchEntries({ ...request, pageToken }, call);
    } catch (error) {
      const reached = error instanceof MeshError ? Number(error.facts["indexed_seq"] ?? -1) : -1;
      if (reached > indexedSeq) {
        indexedSeq = reached;
        patience.answered(); // The first search of a long transcript goes on to read it.
      }
      await patience.waitBeforeNext(error, signal);
      continue;
    }
    patience.answered();
    for (const hit of page.hits) {
      yield hitView(hit);
      found += 1;
      if (found >= limit) return;
    }
    pageToken = page.nextPageToken;
    if (pageToken === "") return;
  }
}

function hitView(hit: WireHit): SearchHit {
  return {
    sessionId: hit.sessionId,
    entryId: hit.entryId,
    seq: Number(hit.seq),
    kind: nameOf(WireKind, hit.kind),
    createTime: dateOf(hit.createTime),
    path: hit.path,
    byteOffset: Number(hit.byteOffset),
    snippet: hit.snippet,
    fileId: present(hit.fileId),
  };
}
