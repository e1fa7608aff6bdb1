// Files that a spawn hands over: small ones inside its request, large ones uploaded before it.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { MeshError, meshError } from "./errors.js";
import type {
  InlineAttachmentSchema,
  ReferencedFileSchema,
} from "./gen/spawnmesh/attachment_blob/v1/attachment_pb.js";
import type { UploadedAttachmentSchema } from "./gen/spawnmesh/attachment_blob/v1/upload_pb.js";
import { sha256 } from "./sha256.js";

/** A file of an attachment set or an output set, whose bytes are not sent again. */
export interface FileReference {
  readonly setId: string;
  readonly name: string;
  /** The name in the new session, by default the same. */
  readonly newName?: string;
}

/** A file of this program: by its content, or in Node by its path, whose last component is its name. */
export type LocalAttachment =
  | { readonly name: string; readonly content: Uint8Array | string; readonly mimeType?: string }
  | { readonly path: string; readonly name?: string; readonly mimeType?: string };

/** A file to attach: one of this program, or by reference one that the mesh has. */
export type Attachment = LocalAttachment | FileReference;

/** The bytes of a file. */
export interface Source {
  readonly size: number;
  /** Return the bytes from the offset on: so many, or fewer at the end of the file. */
  read(offset: number, length: number): Promise<Uint8Array>;
  /** Return the SHA-256 of all bytes, in lower-case hex. */
  sha256(): Promise<string>;
  close(): Promise<void>;
}

/** The files of the machine. A browser has none. */
export interface LocalFiles {
  /** Return the last component of the path. */
  nameOf(path: string): string;
  /** Open the file for reading. */
  open(path: string): Promise<Source>;
}

/** A file that is to be sent. */
export interface Sendable {
  readonly name: string;
  readonly mimeType: string;
  readonly source: Source;
}

/** Upload a file and return the id of the complete upload. */
export type Upload = (file: Sendable) => Promise<string>;

/** The attachments of a request. */
export interface PreparedAttachments {
  readonly inline: MessageInitShape<typeof InlineAttachmentSchema>[];
  readonly uploads: MessageInitShape<typeof UploadedAttachmentSchema>[];
  readonly references: MessageInitShape<typeof ReferencedFileSchema>[];
  /** In the order in which refusals count the files: inline files, then uploads, then references. */
  readonly names: readonly string[];
}

/** A larger file is uploaded. */
const INLINE_BYTES = 1024 * 1024;
/** The rest of the request needs room. */
const SHARE_OF_MESSAGE = 0.9;

/**
 * Read the small files and upload the large ones, and those for which the request has no room left. Files
 * by reference are neither.
 * Without `upload` all files are in the request. Throws MESSAGE_TOO_LARGE for more than fits, the error
 * of the file system for a file that cannot be read, TypeError for a path in a browser, and what
 * `upload` throws.
 */
export async function prepareAttachments(
  attachments: readonly Attachment[],
  maxMessageBytes: number,
  files: LocalFiles | undefined,
  upload: Upload | undefined,
): Promise<PreparedAttachments> {
  const maxBytes = Math.floor(maxMessageBytes * SHARE_OF_MESSAGE);
  let room = maxBytes;
  const inline: PreparedAttachments["inline"] = [];
  const uploads: PreparedAttachments["uploads"] = [];
  const references: PreparedAttachments["references"] = [];
  const uploaded: string[] = [];
  const referenced: string[] = [];
  for (const attachment of attachments) {
    if ("setId" in attachment) {
      const { setId, name, newName = "" } = attachment;
      references.push({ setId, name, newName });
      referenced.push(newName || name);
      continue;
    }
    const { name, mimeType, source } = await opened(attachment, files);
    try {
      if (upload !== undefined && source.size > Math.min(INLINE_BYTES, room)) {
        uploads.push({ uploadId: await upload({ name, mimeType, source }) });
        uploaded.push(name);
        continue;
      }
      room -= source.size;
      if (room < 0) {
        const message = "the attachments together are larger than one request can hold";
        const facts = { max_bytes: String(maxBytes), file: name };
        throw meshError({ reason: "MESSAGE_TOO_LARGE", message, status: "RESOURCE_EXHAUSTED", facts });
      }
      const data = await source.read(0, source.size);
      inline.push({ name, source: { case: "data", value: data }, mimeType });
    } catch (error) {
      if (error instanceof MeshError) error.facts["file"] = name;
      throw error;
    } finally {
      await source.close();
    }
  }
  const names = [...inline.map((item) => item.name ?? ""), ...uploaded, ...referenced];
  return { inline, uploads, references, names };
}

/** Open the file. Throws TypeError for a path in a browser, and the error of the file system. */
export async function opened(
  attachment: LocalAttachment,
  files: LocalFiles | undefined,
): Promise<Sendable> {
  const mimeType = attachment.mimeType ?? "";
  if ("content" in attachment) {
    const { name, content } = attachment;
    const data = typeof content === "string" ? new TextEncoder().encode(content) : content;
    return { name, mimeType, source: sourceOf(data) };
  }
  if (files === undefined) throw new TypeError("a browser reads no paths: pass the content of the file");
  const name = attachment.name ?? files.nameOf(attachment.path);
  return { name, mimeType, source: await files.open(attachment.path) };
}

function sourceOf(data: Uint8Array): Source {
  return {
    size: data.length,
    read: async (offset, length) => data.subarray(offset, offset + length),
    sha256: () => sha256(Uint8Array.from(data)),
    close: async () => {},
  };
}

/** Add the name of the file to a refusal that gives only its index. */
export function nameFile(error: unknown, names: readonly string[]): void {
  if (!(error instanceof MeshError)) return;
  const name = names[Number(error.facts["index"] ?? Number.NaN)];
  if (name !== undefined) error.facts["file"] = name;
}
