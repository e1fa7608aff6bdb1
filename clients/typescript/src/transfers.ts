// The limits that uploads and downloads have in common.

/** Receive a file's name, the number of its bytes that were transferred so far, and its size in bytes. */
export type OnProgress = (name: string, done: number, size: number) => void;

/** The longest time without an answer of the service. */
export const PATIENCE_MS = 60_000;
/** Files of others are large, too. */
export const SLOT_WAIT_MS = 600_000;
/** The refusals of a service that has too many transfers. */
export const NO_SLOT: readonly string[] = ["POOL_EXHAUSTED", "RATE_LIMITED"];

const SLOWEST_BYTES_A_SECOND = 256 * 1024;

/** Return the longest time of a stream that transfers so many bytes. */
export function streamMs(size: number): number {
  return PATIENCE_MS + Math.ceil((size / SLOWEST_BYTES_A_SECOND) * 1000);
}
