// Find the place where two transcripts go apart. They are read as they are needed, so that their common
// beginning is in memory only page by page.

import { Fingerprints } from "./fingerprints.js";
import { type Entry, LabelKind } from "./gen/spawnmesh/transcript/v1/entry_pb.js";

/** Read the entries of a transcript after this seq, oldest first. */
export type ReadEntries = (afterSeq: bigint) => AsyncIterable<Entry>;

/** One of two transcripts began with a copy of the other's messages. */
export interface CopiedBeginning {
  readonly sourceIsA: boolean;
  /** The last entry that was copied from, or 0 if it is not known. */
  readonly upToSeq: bigint;
  /** The ids of the drafts that the copy leaves out. */
  readonly superseded: ReadonlySet<string>;
}

/** The common beginning of two transcripts, and the entries of each behind it. */
export interface Divergence {
  readonly commonCount: number;
  readonly commonMessageCount: number;
  readonly commonSeqA: bigint;
  readonly commonSeqB: bigint;
  /** Messages of the source before the first one that a fork has copied. */
  readonly leftOutCount: number;
  readonly onlyA: readonly Entry[];
  readonly onlyB: readonly Entry[];
  readonly isCutA: boolean;
  readonly isCutB: boolean;
  readonly superseded: ReadonlySet<string>;
}

interface Said {
  readonly entry: Entry;
  readonly fingerprint: string;
}

/** The longest beginning of a copy that the source has, and the place where it ends there. */
interface Overlap {
  readonly length: number;
  readonly sourceSeq: bigint;
  readonly copySeq: bigint;
  readonly leftOutCount: number;
}

const NO_OVERLAP: Overlap = { length: 0, sourceSeq: 0n, copySeq: 0n, leftOutCount: 0 };

/** Compare two transcripts, and keep up to `maxEntries` entries of each behind the common beginning. */
export async function findDivergence(
  readA: ReadEntries,
  readB: ReadEntries,
  copied: CopiedBeginning | undefined,
  maxEntries: number,
): Promise<Divergence> {
  const isFromA = copied?.sourceIsA ?? true;
  const [source, copy] = isFromA ? [readA, readB] : [readB, readA];
  const overlap = copied === undefined ? NO_OVERLAP : await findOverlap(source, copy, copied);
  let seqA = isFromA ? overlap.sourceSeq : overlap.copySeq;
  let seqB = isFromA ? overlap.copySeq : overlap.sourceSeq;
  let count = overlap.length;
  let messageCount = overlap.length;
  const rejected = new Set<string>();
  const a = steps(readA(seqA), rejected);
  const b = steps(readB(seqB), rejected);
  let [one, other] = [await next(a), await next(b)];
  while (one !== undefined && other !== undefined && one.fingerprint === other.fingerprint) {
    [seqA, seqB] = [one.entry.seq, other.entry.seq];
    count += 1;
    if (isMessage(one.entry)) messageCount += 1;
    rejected.clear(); // Nothing of the common beginning is kept.
    [one, other] = [await next(a), await next(b)];
  }
  const [onlyA, isCutA] = await rest(one, a, maxEntries);
  const [onlyB, isCutB] = await rest(other, b, maxEntries);
  const kept = new Set([...onlyA, ...onlyB].map(({ entryId }) => entryId));
  return {
    commonCount: count,
    commonMessageCount: messageCount,
    commonSeqA: seqA,
    commonSeqB: seqB,
    leftOutCount: overlap.leftOutCount,
    ...{ onlyA, onlyB, isCutA, isCutB },
    superseded: new Set([...rejected].filter((id) => kept.has(id))),
  };
}

/** Yield the entries that say something. `rejected` gets the ids of superseded drafts. */
async function* steps(entries: AsyncIterable<Entry>, rejected: Set<string>): AsyncGenerator<Said, void> {
  const fingerprints = new Fingerprints();
  for await (const entry of entries) {
    const kind = entry.body?.kind;
    if (kind?.case === "label" && kind.value.kind === LabelKind.SUPERSEDED) rejected.add(kind.value.entryId);
    const fingerprint = await fingerprints.of(entry);
    if (fingerprint !== undefined) yield { entry, fingerprint };
  }
}

async function next<T>(items: AsyncGenerator<T, void>): Promise<T | undefined> {
  const { value } = await items.next();
  return value === undefined ? undefined : value;
}

/** Return the entries from the first one on, up to the limit, and whether there are more. */
async function rest(
  first: Said | undefined,
  more: AsyncGenerator<Said, void>,
  maxEntries: number,
): Promise<[readonly Entry[], boolean]> {
  const found: Entry[] = [];
  for (let step = first; step !== undefined; step = await next(more)) {
    if (found.length === maxEntries) {
      await more.return();
      return [found, true];
    }
    found.push(step.entry);
  }
  return [found, false];
}

/**
 * Return the longest beginning of the copy's messages that the source has, the newest such place of it.
 * The source is searched as by Knuth, Morris and Pratt. A copy begins late in the source if the source was
 * too long for it.
 */
async function findOverlap(
  source: ReadEntries,
  copy: ReadEntries,
  copied: CopiedBeginning,
): Promise<Overlap> {
  const beginning = new ForkBeginning(copy(0n));
  let [matched, count] = [0, 0];
  let best = NO_OVERLAP;
  for await (const { entry, fingerprint } of steps(source(0n), new Set())) {
    if (copied.upToSeq !== 0n && entry.seq > copied.upToSeq) break;
    if (!isMessage(entry) || copied.superseded.has(entry.entryId)) continue;
    count += 1;
    matched = await beginning.extend(matched, fingerprint);
    if (matched > 0 && matched >= best.length) {
      const copySeq = beginning.seqs[matched - 1] ?? 0n;
      best = { length: matched, sourceSeq: entry.seq, copySeq, leftOutCount: count - matched };
    }
  }
  // Nothing behind it was to be copied.
  const isWhole = copied.upToSeq !== 0n && best.length > 0 && best.leftOutCount + best.length === count;
  return isWhole ? { ...best, sourceSeq: copied.upToSeq } : best;
}

function isMessage(entry: Entry): boolean {
  return entry.body?.kind.case === "message";
}

/** The entries with which a fork begins, read as far as the source has them. */
class ForkBeginning {
  readonly seqs: bigint[] = [];
  readonly #steps: AsyncGenerator<Said, void>;
  readonly #fingerprints: string[] = [];
  /** For each beginning, the length of the longest shorter one with which it ends. */
  readonly #borders: number[] = [];
  #isRead = false;

  constructor(entries: AsyncIterable<Entry>) {
    this.#steps = steps(entries, new Set());
  }

  /**
   * Return the length of the longest beginning that ends with this message of the source, if the one of
   * `matched` messages ended before it.
   */
  async extend(matched: number, fingerprint: string): Promise<number> {
    for (let length = matched; ; length = this.#borders[length - 1] ?? 0) {
      if ((await this.#has(length)) && this.#fingerprints[length] === fingerprint) return length + 1;
      if (length === 0) return 0;
    }
  }

  /** Read up to this place. Return false if the fork has no entry there. */
  async #has(place: number): Promise<boolean> {
    while (this.seqs.length <= place && !this.#isRead) {
      const step = await next(this.#steps);
      if (step === undefined) this.#isRead = true;
      else this.#append(step);
    }
    return place < this.seqs.length;
  }

  #append({ entry, fingerprint }: Said): void {
    let border = this.#borders.at(-1) ?? 0;
    while (border > 0 && this.#fingerprints[border] !== fingerprint) border = this.#borders[border - 1] ?? 0;
    if (this.#fingerprints.length > 0 && this.#fingerprints[border] === fingerprint) border += 1;
    this.seqs.push(entry.seq);
    this.#fingerprints.push(fingerprint);
    this.#borders.push(border);
  }
}
