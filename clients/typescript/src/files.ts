// The files that are attached to the tenant's sessions, and those that runs have published.

import { type LocalAttachment, type LocalFiles, opened } from "./attachments.js";
import type { Connection } from "./connection.js";
import { downloadFile } from "./downloads.js";
import { meshError } from "./errors.js";
import type { AttachmentSet as WireSet } from "./gen/spawnmesh/attachment_blob/v1/attachment_pb.js";
import { dateOf } from "./names.js";
import type { OnProgress } from "./transfers.js";
import { uploadFile } from "./uploads.js";
import { type AttachmentSet, setView } from "./views.js";

/** Options of a download or an upload. */
export interface DownloadOptions {
  /** Is called while the file is transferred. */
  readonly onProgress?: OnProgress;
  readonly signal?: AbortSignal;
}

/** A file that the tenant's store has. */
export interface StoredUpload {
  readonly uploadId: string;
  readonly name: string;
  readonly sizeBytes: number;
}

/** An address from which anybody can download one file for a short time. It is as secret as the file. */
export interface DownloadUrl {
  readonly url: string;
  readonly expireTime: Date | undefined;
}

/** What files need of their mesh: without `upload`, requests cannot be streams. */
export interface FilesConnection extends Connection {
  readonly upload?: boolean;
  readonly files?: LocalFiles;
}

const PAGE_SIZE = 500;

/** List attachment sets and output sets, and download their files. */
export class Files {
  readonly #connection: FilesConnection;

  constructor(connection: FilesConnection) {
    this.#connection = connection;
  }

  /**
   * Yield the tenant's sets, or those of one session, newest first: the attachments of spawns, and the
   * files that runs stored to publish them, which have a `runId`.
   */
  async *sets(options: { sessionId?: string } = {}): AsyncGenerator<AttachmentSet, void, undefined> {
    const request = { sessionId: options.sessionId ?? "", pageSize: PAGE_SIZE };
    let pageToken = "";
    do {
      const page = await this.blobs.listSets({ ...request, pageToken });
      yield* page.sets.map(setView);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /** Return an attachment set or an output set with its files. Throws NotFound. */
  async get(setId: string): Promise<AttachmentSet> {
    return viewed((await this.blobs.getSet({ setId })).set);
  }

  /**
   * Download a file of a set, and return its bytes, which are complete and have the recorded hash. The
   * whole file is held in memory.
   *
   * The download resumes after a broken connection or a restart of the service, and gives up after a
   * minute without an answer. Throws NotFound, FailedPrecondition ATTACHMENT_SET_STATE for a set that was
   * released, and DataLoss STORED_HASH_DIFFERS if the bytes differ from the recorded hash.
   */
  async download(setId: string, name: string, options: DownloadOptions = {}): Promise<Uint8Array> {
    const { signal } = options;
    const { set } = await this.blobs.getSet({ setId }, signal && { signal });
    const { files, state } = viewed(set);
    if (state === "RELEASED") {
      const message = `attachment set ${setId} is released and its files are gone`;
      const facts = { set_id: setId, state };
      const reason = "ATTACHMENT_SET_STATE";
      throw meshError({ reason, message, status: "FAILED_PRECONDITION", facts });
    }
    const file = files.find((one) => one.name === name);
    if (file === undefined) {
      const facts = { resource: "file", id: name };
      const message = `there is no file ${name} here`;
      throw meshError({ reason: "NOT_FOUND", message, status: "NOT_FOUND", facts });
    }
    const { clock } = this.#connection;
    return downloadFile({ ...options, blobs: this.blobs, clock }, setId, file);
  }

  /**
   * Upload a file to the tenant's store, where a later spawn with the same file finds it and sends nothing.
   * The upload goes on where its connection broke, also when another program repeats it.
   *
   * Throws TypeError in a browser, the error of the file system, the reason of the signal, and MeshError.
   */
  async upload(file: LocalAttachment, options: DownloadOptions = {}): Promise<StoredUpload> {
    const { upload = false, files, clock } = this.#connection;
    if (!upload) throw new TypeError("uploads need Node, and the address of attachment-blob");
    const { name, mimeType, source } = await opened(file, files);
    try {
      const context = { ...options, blobs: this.blobs, clock };
      const uploadId = await uploadFile(context, { name, mimeType, source });
      return { uploadId, name, sizeBytes: source.size };
    } finally {
      await source.close();
    }
  }

  /**
   * Return an address from which anybody can download one file for a short time. Throws FailedPrecondition
   * DOWNLOAD_URLS_DISABLED unless the tenant has them.
   */
  async url(setId: string, name: string): Promise<DownloadUrl> {
    const { url, expireTime } = await this.blobs.createDownloadUrl({ setId, name });
    return { url, expireTime: dateOf(expireTime) };
  }

  private get blobs() {
    return this.#connection.services.attachmentBlob;
  }
}

function viewed(set: WireSet | undefined): AttachmentSet {
  if (set === undefined) throw new TypeError("the mesh answered without a set");
  return setView(set);
}
