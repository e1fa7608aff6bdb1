// Fingerprints of transcript entries: two entries that say the same have the same one.

import { toBinary } from "@bufbuild/protobuf";
import {
  type ContentBlock,
  ContentBlockSchema,
  type Message,
  Role,
} from "./gen/spawnmesh/content/v1/message_pb.js";
import { type Entry, EntryBodySchema, LabelKind } from "./gen/spawnmesh/transcript/v1/entry_pb.js";
import { sha256 } from "./sha256.js";

const ARGUMENT_KEYS = ["arguments", "input", "args"];
const CALL_IDS = new Set(["id", "toolCallId", "tool_call_id", "call_id"]);
const KINDS = "ses|run|att|upl|blb|ent|del|inc|aud|opr|apr|rsv|cal|evt|whk|sch|fir|tok";
const MESH_ID = new RegExp(`(?:${KINDS})_[0-7][0-9a-hjkmnp-tv-z]{25}`, "g");
/** The manifest of attached files has the id of their set, and a list of files has its hash. */
const MANIFEST_HASH = /(\.manifest\.json[^{}]{1,200}?sha256[\\": ]+)[0-9a-f]{64}/g;
const STRING_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

/**
 * The fingerprints of the entries of one transcript, in their order. They depend on what the entries say:
 * roles, texts, images, commands, tool calls with their arguments, and results. Ids and times do not
 * count, and neither do models, thinking, tokens and cost. A result refers to its call by its place among
 * the calls of the turn; an id of the mesh in a text counts by the order of the ids in the entry.
 */
export class Fingerprints {
  #calls: string[] = [];

  /**
   * Return the fingerprint of the next entry, or undefined for one that says nothing: the header, a change
   * of the model, and the label of the accepted answer.
   */
  async of(entry: Entry): Promise<string | undefined> {
    const parts = await this.#parts(entry);
    if (parts === undefined) return undefined;
    const seen = new Map<string, number>();
    const text = canonical(parts)
      .replace(MANIFEST_HASH, "$1")
      .replace(MESH_ID, (id) => {
        const place = seen.get(id) ?? seen.size;
        seen.set(id, place);
        return `${id.slice(0, 4)}${place}`;
      });
    return sha256(new TextEncoder().encode(text));
  }

  async #parts({ body }: Entry): Promise<readonly Json[] | undefined> {
    const kind = body?.kind;
    switch (kind?.case) {
      case "header":
      case "modelChange":
        return undefined;
      case "label":
        return kind.value.kind === LabelKind.SUPERSEDED ? [kind.case] : undefined;
      case "message":
        return [kind.case, ...(await this.#message(kind.value))];
      case "mirror": {
        const { message, destination } = kind.value;
        return [kind.case, destination, ...(message === undefined ? [] : await this.#message(message))];
      }
      case "systemNote":
        return [kind.case, kind.value.topic, kind.value.text];
      case "compaction":
      case "branchSummary":
        return [kind.case, kind.value.summary];
      case "custom":
        return [kind.case, kind.value.customType, parsed(kind.value.dataJson)];
      case "opaque":
        return [kind.case, kind.value.type, parsed(kind.value.entryJson)];
      default: // A kind of a newer service.
        return ["unknown", body === undefined ? "" : hex(toBinary(EntryBodySchema, body))];
    }
  }

  async #message(message: Message): Promise<readonly Json[]> {
    if (message.role === Role.ASSISTANT) {
      // The results of its calls come before its next message.
      this.#calls = message.content.flatMap(({ block }) =>
        block.case === "toolCall" ? [block.value.toolCallId] : [],
      );
    }
    const ran = message.bashExecution;
    const command = ran ? [ran.command, ran.exitCode ?? null, ran.isCancelled, ran.isTruncated] : [];
    const said = message.content.filter(({ block }) => block.case !== "thinking");
    const place = this.#calls.indexOf(message.toolCallId);
    return [
      ...[message.role, message.customType, message.toolName, message.isError, place, command],
      await Promise.all(said.map(blockParts)),
    ];
  }
}

async function blockParts(one: ContentBlock): Promise<readonly Json[]> {
  const { block } = one;
  switch (block.case) {
    case "text":
      return [block.case, block.value.text];
    case "toolCall":
      return [block.case, block.value.name, argumentsIn(block.value.blockJson)];
    case "image":
      return [block.case, block.value.mimeType, await sha256(new Uint8Array(block.value.data))];
    default:
      return ["unknown", hex(toBinary(ContentBlockSchema, one))];
  }
}

/** Return what the arguments of a call say; the block without its id if they are not there. */
function argumentsIn(blockJson: string): Json {
  const block = parsed(blockJson);
  if (block === null || typeof block !== "object" || Array.isArray(block)) return block;
  const fields = block as { readonly [key: string]: Json };
  for (const key of ARGUMENT_KEYS) {
    const found = fields[key];
    if (found !== undefined) return typeof found === "string" ? parsed(found) : found;
  }
  return Object.fromEntries(Object.entries(fields).filter(([key]) => !CALL_IDS.has(key)));
}

/** Return the JSON value whose numbers keep their digits; the text itself if it is no JSON. */
function parsed(text: string): Json {
  const kept = text.replace(STRING_OR_NUMBER, (part) => (part.startsWith('"') ? part : `{"":"${part}"}`));
  try {
    const value = JSON.parse(kept) as Json;
    canonical(value); // A depth that can be read may be too much to be written.
    return value;
  } catch {
    return text;
  }
}

/** Return the JSON text of a value, with the keys of objects in order. */
function canonical(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const fields = value as { readonly [key: string]: Json };
  const keys = Object.keys(fields).sort();
  return `{${keys.map((key) => `${JSON.stringify(key)}:${canonical(fields[key] ?? null)}`).join(",")}}`;
}

function hex(data: Uint8Array): string {
  return Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
