// Retries of calls that may be repeated, and patience with a service that stopped answering.

import { MeshError } from "./errors.js";

const SILENCE_MS = 1_000;
/** An unavailable service fails sooner, so a call that lasted longer had been answered. */
const CONNECTED_MS = 10_000;
/** How long a call that lasts goes on without an answer. */
export const PATIENCE_MS = 60_000;
const LIMITED: readonly string[] = ["RATE_LIMITED", "POOL_EXHAUSTED"];

/** How often and after which pauses a call is repeated. */
export interface RetryPolicy {
  /** All attempts of one call, the first one included. */
  readonly maxAttempts: number;
  /** The longest pause before the first repeat. It doubles with each further one. */
  readonly baseDelayMs: number;
  /** The longest pause, unless the service asks for a longer one. */
  readonly maxDelayMs: number;
}

export const DEFAULT_RETRY: RetryPolicy = { maxAttempts: 5, baseDelayMs: 100, maxDelayMs: 5_000 };

/** Time and randomness, which tests replace. */
export interface Clock {
  /** Milliseconds since any fixed moment. */
  now(): number;
  /** Wait, or throw the signal's reason as soon as it is aborted. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
  /** A number from 0 to 1. */
  random(): number;
}

export const SYSTEM_CLOCK: Clock = {
  now: () => performance.now(),
  random: () => Math.random(),
  sleep: (ms, signal) =>
    new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const abort = (): void => {
        clearTimeout(timer);
        reject(signal?.reason);
      };
      const timer = setTimeout(() => {
        signal?.removeEventListener("abort", abort);
        resolve();
      }, ms);
      signal?.addEventListener("abort", abort, { once: true });
    }),
};

/** Return whether the same call may succeed later. */
export function isTransient(error: unknown): error is MeshError {
  if (!(error instanceof MeshError)) return false;
  if (error.status === "UNAVAILABLE") return error.facts["is_transient"] !== "false";
  return LIMITED.includes(error.reason) || error.reason === "CONFLICT";
}

/**
 * Return the answer of `attempt`, repeated after transient errors until it succeeds or the attempts or
 * the time are used up. Each attempt gets the milliseconds that are left.
 */
export async function withRetries<T>(
  attempt: (leftMs: number) => Promise<T>,
  timeoutMs: number,
  policy: RetryPolicy,
  clock: Clock,
  signal?: AbortSignal,
): Promise<T> {
  const end = clock.now() + timeoutMs;
  for (let count = 1; ; count++) {
    try {
      return await attempt(Math.max(1, end - clock.now()));
    } catch (error) {
      if (count >= policy.maxAttempts || !isTransient(error)) throw error;
      const pause = pauseBefore(count, error.retryAfterMs, policy, clock.random());
      if (clock.now() + pause >= end) throw error;
      await clock.sleep(pause, signal);
    }
  }
}

/** Return a random part of the back-off, after the time for which the service asks. */
export function pauseBefore(
  count: number,
  retryAfterMs: number | undefined,
  policy: RetryPolicy,
  random: number,
): number {
  const longest = Math.min(policy.maxDelayMs, policy.baseDelayMs * 2 ** (count - 1));
  return (retryAfterMs ?? 0) + random * longest;
}

/**
 * Retry over a restart of a service, for a call that lasts: a stream that resumes, or a long wait.
 * Call `begin` before each attempt, `answered` after each answer, and `waitBeforeNext` after a failure.
 */
export class Patience {
  private began: number;
  private silentSince: number | undefined;

  constructor(
    private readonly patienceMs: number,
    private readonly clock: Clock,
  ) {
    this.began = clock.now();
  }

  begin(): void {
    this.began = this.clock.now();
  }

  answered(): void {
    this.silentSince = undefined;
  }

  /**
   * Wait until the next attempt. Throws the error if a retry does not help, or if the service would
   * have been silent for too long.
   */
  async waitBeforeNext(error: unknown, signal?: AbortSignal): Promise<void> {
    const now = this.clock.now();
    const wasConnected = now - this.began > CONNECTED_MS;
    const isExpired = error instanceof MeshError && error.reason === "TOKEN_EXPIRED";
    if (isExpired && wasConnected) return; // The next attempt gets a new token.
    const isOver = error instanceof MeshError && error.status === "DEADLINE_EXCEEDED";
    if (this.silentSince === undefined || wasConnected) this.silentSince = now;
    const asked = error instanceof MeshError ? error.retryAfterMs : undefined;
    const pause = (asked ?? SILENCE_MS) * (1 + this.clock.random() / 4);
    const isPassing = isOver || isTransient(error);
    if (!isPassing || now + pause - this.silentSince > this.patienceMs) throw error;
    await this.clock.sleep(pause, signal);
  }
}

/**
 * Yield the messages of a stream, which `open` opens again, behind the last message, after it broke.
 * Throws what does not pass, after a minute without an answer, and the reason of the signal.
 */
export async function* continued<T>(
  open: (signal: AbortSignal) => AsyncIterable<T>,
  clock: Clock,
  signal?: AbortSignal,
): AsyncGenerator<T, void, undefined> {
  const patience = new Patience(PATIENCE_MS, clock);
  for (;;) {
    const left = new AbortController();
    patience.begin();
    try {
      // The stream has no deadline: its timer would keep the program alive after the loop is left.
      for await (const message of open(signal ? AbortSignal.any([signal, left.signal]) : left.signal)) {
        patience.answered();
        yield message;
      }
      return;
    } catch (error) {
      await patience.waitBeforeNext(error, signal);
    } finally {
      left.abort(); // Otherwise the stream stays open when the loop is left.
    }
  }
}
