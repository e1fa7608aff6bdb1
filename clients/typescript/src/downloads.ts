// Downloads of files in streams that resume where they broke.

import type { Client } from "@connectrpc/connect";
import { MeshError, meshError } from "./errors.js";
import type { AttachmentBlobService } from "./gen/spawnmesh/attachment_blob/v1/attachment_blob_service_pb.js";
import { type Clock, Patience } from "./retry.js";
import { sha256 } from "./sha256.js";
import { NO_SLOT, type OnProgress, PATIENCE_MS, SLOT_WAIT_MS, streamMs } from "./transfers.js";
import type { AttachedFile } from "./views.js";

const POLL_MS = 5_000;

/** What a download needs of its mesh. */
export interface DownloadContext {
  readonly blobs: Client<typeof AttachmentBlobService>;
  readonly clock: Clock;
  readonly onProgress?: OnProgress | undefined;
  readonly signal?: AbortSignal | undefined;
}

/**
 * Download a file of a set, and return its bytes.
 *
 * They are complete and have the recorded hash. The download resumes after broken streams and restarts
 * of the service, and waits while the service has too many of them. Throws the reason of the signal, and
 * MeshError, for example STORED_HASH_DIFFERS if the bytes differ from the recorded hash.
 */
export async function downloadFile(
  context: DownloadContext,
  setId: string,
  file: AttachedFile,
): Promise<Uint8Array> {
  const { blobs, clock, onProgress, signal } = context;
  const { name, sizeBytes } = file;
  const data = new Uint8Array(sizeBytes);
  const patience = new Patience(PATIENCE_MS, clock);
  let offset = 0;
  let waitUntil = clock.now() + SLOT_WAIT_MS;
  for (let isDone = false; !isDone; ) {
    const left = new AbortController();
    const either = signal ? AbortSignal.any([signal, left.signal]) : left.signal;
    const request = { setId, name, offset: BigInt(offset) };
    // The timer of the transport would keep the program alive after a failure in the loop.
    const timer = setTimeout(() => left.abort(tookTooLong(name)), streamMs(sizeBytes));
    patience.begin();
    try {
      for await (const { data: piece } of blobs.readFile(request, { signal: either })) {
        signal?.throwIfAborted();
        patience.answered();
        waitUntil = clock.now() + SLOT_WAIT_MS;
        if (offset + piece.length > sizeBytes) throw hashDiffers(setId);
        data.set(piece, offset);
        offset += piece.length;
        onProgress?.(name, offset, sizeBytes);
      }
      isDone = true;
    } catch (error) {
      if (error instanceof MeshError && NO_SLOT.includes(error.reason) && clock.now() < waitUntil) {
        await clock.sleep(error.retryAfterMs ?? POLL_MS, signal);
      } else {
        await patience.waitBeforeNext(error, signal);
      }
    } finally {
      clearTimeout(timer);
      left.abort(); // Otherwise the stream stays open after a failure in the loop.
    }
  }
  if (offset < sizeBytes || (await sha256(data)) !== file.sha256) throw hashDiffers(setId);
  return data;
}

function tookTooLong(name: string): MeshError {
  const message = `the download of ${name} took too long`;
  return meshError({ reason: "DEADLINE_EXCEEDED", message, status: "DEADLINE_EXCEEDED" });
}

function hashDiffers(setId: string): MeshError {
  const message = "the bytes that came are not the file's";
  const facts = { set_id: setId };
  return meshError({ reason: "STORED_HASH_DIFFERS", message, status: "DATA_LOSS", facts });
}
