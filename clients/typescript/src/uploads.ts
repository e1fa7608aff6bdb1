// Uploads of files in streams that resume where they broke.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { timestampMs } from "@bufbuild/protobuf/wkt";
import type { Client } from "@connectrpc/connect";
import type { Sendable } from "./attachments.js";
import { crc32c } from "./crc32c.js";
import { MeshError, meshError } from "./errors.js";
import type {
  AttachmentBlobService,
  UploadFileRequestSchema,
} from "./gen/spawnmesh/attachment_blob/v1/attachment_blob_service_pb.js";
import {
  type Upload,
  type UploadSpecSchema,
  UploadState,
} from "./gen/spawnmesh/attachment_blob/v1/upload_pb.js";
import { type Clock, Patience } from "./retry.js";
import { NO_SLOT, type OnProgress, PATIENCE_MS, SLOT_WAIT_MS, streamMs } from "./transfers.js";

const CHUNK_BYTES = 1024 * 1024;
const POLL_MS = 500;
/** One part of the slowest stream takes 20 s. */
const STALLED_MS = 30_000;
/** Another stream may stall so often and be continued by a third one. */
const MOST_ROBBED = 10;
const MOST_RESENT = 3;
const RESENT: readonly string[] = ["UPLOAD_CRC_DIFFERS", "UPLOAD_OFFSET_DIFFERS"];
const ID_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz";

type Spec = MessageInitShape<typeof UploadSpecSchema> & { uploadId: string; name: string };
type Request = MessageInitShape<typeof UploadFileRequestSchema>;

/** What an upload needs of its mesh. */
export interface UploadContext {
  readonly blobs: Client<typeof AttachmentBlobService>;
  readonly clock: Clock;
  readonly onProgress?: OnProgress | undefined;
  readonly signal?: AbortSignal | undefined;
}

/**
 * Upload the file and return the id of the complete upload.
 *
 * Bytes that the tenant already has are not sent. The upload resumes after broken streams and restarts
 * of the service, also when another program repeats it. While another program sends the same file, this
 * call waits for it. Throws the error of the file system, the reason of the signal, and MeshError, for
 * example UPLOAD_HASH_DIFFERS if the file was changed meanwhile.
 */
export async function uploadFile(context: UploadContext, file: Sendable): Promise<string> {
  const { clock, onProgress, signal } = context;
  const { size } = file.source;
  const spec = await specOf(file);
  const patience = new Patience(PATIENCE_MS, clock);
  let begun = await announced(context, spec, patience);
  let resent = 0;
  let robbed = 0;
  let waitUntil = clock.now() + SLOT_WAIT_MS;
  while (begun.state !== UploadState.COMPLETE) {
    patience.begin();
    const { durableBytes } = begun;
    try {
      begun = await sent(context, chunks(spec, file, Number(durableBytes), onProgress), streamMs(size));
    } catch (error) {
      if (!(error instanceof MeshError)) throw error;
      if (error.reason === "UPLOAD_TAKEN_OVER" && robbed < MOST_ROBBED) {
        robbed += 1;
        begun = await whileAnotherSends(context, spec, begun);
        continue;
      }
      const isResent = RESENT.includes(error.reason);
      if (isResent) resent += 1;
      if (NO_SLOT.includes(error.reason) && clock.now() < waitUntil) {
        await clock.sleep(error.retryAfterMs ?? POLL_MS, signal);
      } else if (!isResent || resent > MOST_RESENT) {
        await patience.waitBeforeNext(error, signal);
      }
      begun = await announced(context, spec, patience);
      if (begun.durableBytes > durableBytes) {
        patience.answered();
        resent = 0;
        waitUntil = clock.now() + SLOT_WAIT_MS;
      }
    }
  }
  onProgress?.(file.name, size, size);
  return spec.uploadId;
}

/** Begin the upload, or read it, and return it. */
async function announced(context: UploadContext, spec: Spec, patience: Patience): Promise<Upload> {
  for (;;) {
    patience.begin();
    try {
      return await sent(context, only(spec), PATIENCE_MS);
    } catch (error) {
      await patience.waitBeforeNext(error, context.signal);
    }
  }
}

/**
 * Wait while another stream sends the file. Return the upload when it is COMPLETE, when the other stream
 * stalled, or when it was removed and begun again.
 */
async function whileAnotherSends(context: UploadContext, spec: Spec, before: Upload): Promise<Upload> {
  const { clock, onProgress, signal } = context;
  const patience = new Patience(PATIENCE_MS, clock);
  let begun = before;
  let growMs = clock.now();
  while (begun.state !== UploadState.COMPLETE && clock.now() - growMs < STALLED_MS) {
    await clock.sleep(POLL_MS, signal);
    const found = await announced(context, spec, patience);
    patience.answered();
    onProgress?.(spec.name, Number(found.durableBytes), Number(spec.sizeBytes));
    if (createMs(found) !== createMs(begun)) return found;
    if (found.durableBytes > begun.durableBytes) growMs = clock.now();
    begun = found;
  }
  return begun;
}

async function sent(
  { blobs, signal }: UploadContext,
  messages: AsyncGenerator<Request>,
  timeoutMs: number,
): Promise<Upload> {
  // The transport hides the error of a file behind one of the call.
  let failure: { readonly error: unknown } | undefined;
  async function* noted(): AsyncGenerator<Request> {
    for (;;) {
      let next: IteratorResult<Request>;
      try {
        next = await messages.next();
      } catch (error) {
        failure = { error };
        throw error;
      }
      if (next.done === true) return;
      yield next.value; // The error of a call that failed is thrown here.
    }
  }
  try {
    return uploadOf(await blobs.uploadFile(noted(), { timeoutMs, ...(signal && { signal }) }));
  } catch (error) {
    throw failure === undefined ? error : failure.error;
  }
}

async function* only(spec: Spec): AsyncGenerator<Request> {
  yield { message: { case: "spec", value: spec } };
}

async function* chunks(
  spec: Spec,
  file: Sendable,
  durableBytes: number,
  onProgress: OnProgress | undefined,
): AsyncGenerator<Request> {
  yield* only(spec);
  const { size } = file.source;
  for (let offset = durableBytes; offset < size; ) {
    onProgress?.(file.name, offset, size);
    const data = await file.source.read(offset, Math.min(CHUNK_BYTES, size - offset));
    if (data.length === 0) throw changed(spec, offset, size);
    const chunk = { offset: BigInt(offset), data, crc32c: crc32c(data) };
    yield { message: { case: "chunk", value: chunk } };
    offset += data.length;
  }
  yield { message: { case: "finish", value: {} } };
}

function changed(spec: Spec, offset: number, size: number): MeshError {
  const message =
    `${spec.name} was changed while it was read: it ends at ${offset} of ${size} bytes;` +
    " hand it over again when no program writes to it";
  const facts = { upload_id: spec.uploadId, offset: String(offset), size_bytes: String(size) };
  return meshError({ reason: "UPLOAD_HASH_DIFFERS", message, status: "INVALID_ARGUMENT", facts });
}

async function specOf({ name, mimeType, source }: Sendable): Promise<Spec> {
  const sha256 = await source.sha256();
  const uploadId = await idOf(`${name}/${mimeType}/${source.size}/${sha256}`);
  return { uploadId, name, mimeType, sha256, sizeBytes: BigInt(source.size) };
}

/** The same file has the same id, so that a repeat finds what was sent. Ids have their time first. */
async function idOf(text: string): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
  const letters = Array.from(digest.subarray(0, 16), (byte) => ID_LETTERS[byte % 32]);
  return `upl_0000000000${letters.join("")}`;
}

function uploadOf(answer: { upload?: Upload | undefined }): Upload {
  if (answer.upload !== undefined) return answer.upload;
  throw meshError({ reason: "INTERNAL", message: "the answer has no upload", status: "INTERNAL" });
}

function createMs(upload: Upload): number | undefined {
  return upload.createTime && timestampMs(upload.createTime);
}
