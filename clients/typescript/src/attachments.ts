// Files that a spawn hands over inside its request.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { MeshError, meshError } from "./errors.js";
import type { InlineAttachmentSchema } from "./gen/spawnmesh/attachment_blob/v1/attachment_pb.js";

/** A file to attach: by its content, or in Node by its path, whose last component is its name. */
export type Attachment =
  | { readonly name: string; readonly content: Uint8Array | string; readonly mimeType?: string }
  | { readonly path: string; readonly name?: string; readonly mimeType?: string };

/** The files of the machine. A browser has none. */
export interface Files {
  /** Return the last component of the path. */
  nameOf(path: string): string;
  /** Return at most so many bytes of the file. */
  read(path: string, maxBytes: number): Promise<Uint8Array>;
}

type Inline = MessageInitShape<typeof InlineAttachmentSchema>;

/** The rest of the request needs room. */
const SHARE_OF_MESSAGE = 0.9;

/**
 * Return the files as a request has them. Throws MESSAGE_TOO_LARGE, without reading more than one
 * request can hold; the error of the file system for a file that cannot be read; and TypeError for a
 * path in a browser.
 */
export async function inlineAttachments(
  attachments: readonly Attachment[],
  maxMessageBytes: number,
  files: Files | undefined,
): Promise<Inline[]> {
  const maxBytes = Math.floor(maxMessageBytes * SHARE_OF_MESSAGE);
  let room = maxBytes;
  const inline: Inline[] = [];
  for (const attachment of attachments) {
    const { name, data } = await read(attachment, room, files);
    room -= data.length;
    if (room < 0) {
      const message = "the attachments together are larger than one request can hold";
      const facts = { max_bytes: String(maxBytes), file: name };
      throw meshError({ reason: "MESSAGE_TOO_LARGE", message, status: "RESOURCE_EXHAUSTED", facts });
    }
    inline.push({ name, source: { case: "data", value: data }, mimeType: attachment.mimeType ?? "" });
  }
  return inline;
}

async function read(
  attachment: Attachment,
  room: number,
  files: Files | undefined,
): Promise<{ name: string; data: Uint8Array }> {
  if ("content" in attachment) {
    const { name, content } = attachment;
    return { name, data: typeof content === "string" ? new TextEncoder().encode(content) : content };
  }
  if (files === undefined) throw new TypeError("a browser reads no paths: pass the content of the file");
  const name = attachment.name ?? files.nameOf(attachment.path);
  // One byte more than fits shows that the file does not fit.
  return { name, data: await files.read(attachment.path, room + 1) };
}

/** Add the name of the file to a refusal that gives only its index. */
export function nameFile(error: unknown, inline: readonly Inline[]): void {
  if (!(error instanceof MeshError)) return;
  const name = inline[Number(error.facts["index"] ?? Number.NaN)]?.name;
  if (name !== undefined) error.facts["file"] = name;
}
