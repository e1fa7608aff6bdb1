// Entries of a transcript, as plain values.

import {
  type ContentBlock as WireBlock,
  type Message as WireMessage,
  Role as WireRole,
} from "./gen/spawnmesh/content/v1/message_pb.js";
import {
  type Entry as WireEntry,
  type EntryBody,
  LabelKind as WireLabel,
} from "./gen/spawnmesh/transcript/v1/entry_pb.js";
import { dateOf, type NameIn, nameOf, present } from "./names.js";
import { type TokenUsage, usageView } from "./views.js";

export type Role = NameIn<typeof WireRole>;
export type LabelKind = NameIn<typeof WireLabel>;

/** One entry of a transcript. */
export interface Entry {
  readonly entryId: string;
  readonly parentEntryId: string | undefined;
  /** The position, from 1. Pass it as `afterSeq` to continue behind it. */
  readonly seq: number;
  readonly createTime: Date | undefined;
  readonly tokenCount: number;
  readonly chainHash: string;
  readonly writer: Writer;
  readonly body: Body;
}

/** The writer of an entry: a run, a service, or a client by the subject of its token. */
export interface Writer {
  readonly runId: string | undefined;
  readonly service: string | undefined;
  readonly client: string | undefined;
}

/** The content of an entry. `type` says which kind it is. */
export type Body =
  | { readonly type: "header"; readonly sessionId: string; readonly forkedFromSessionId: string | undefined }
  | ({ readonly type: "message" } & Message)
  | { readonly type: "systemNote"; readonly text: string; readonly topic: string }
  | { readonly type: "label"; readonly entryId: string; readonly kind: LabelKind }
  | {
      readonly type: "modelChange";
      readonly model: string | undefined;
      readonly thinkingLevel: string | undefined;
    }
  | { readonly type: "compaction"; readonly summary: string; readonly firstKeptEntryId: string | undefined }
  | { readonly type: "branchSummary"; readonly summary: string; readonly fromEntryId: string | undefined }
  | { readonly type: "custom"; readonly customType: string; readonly dataJson: string | undefined }
  | { readonly type: "opaque"; readonly opaqueType: string; readonly entryJson: string }
  | { readonly type: "mirror"; readonly destination: string | undefined; readonly message: Message }
  /** A kind that a newer mesh sends. */
  | { readonly type: "unknown" };

/** One message of the conversation. */
export interface Message {
  readonly role: Role;
  readonly content: readonly Block[];
  /** All text blocks, one behind the other. */
  readonly text: string;
  readonly toolCallId: string | undefined;
  readonly toolName: string | undefined;
  readonly isError: boolean;
  readonly model: string | undefined;
  readonly usage: TokenUsage | undefined;
  readonly bashExecution: BashExecution | undefined;
  readonly customType: string | undefined;
}

/** A command that was run beside the model. */
export interface BashExecution {
  readonly command: string;
  readonly exitCode: number | undefined;
  readonly isCancelled: boolean;
  readonly isTruncated: boolean;
}

/** One block of a message. */
export type Block =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "thinking"; readonly text: string }
  | {
      readonly type: "toolCall";
      readonly toolCallId: string;
      readonly name: string;
      /** The complete block as JSON, as the provider shapes it. */
      readonly blockJson: string;
    }
  | { readonly type: "image"; readonly mimeType: string; readonly data: Uint8Array }
  | { readonly type: "unknown" };

export function entryView(entry: WireEntry): Entry {
  return {
    entryId: entry.entryId,
    parentEntryId: present(entry.parentEntryId),
    seq: Number(entry.seq),
    createTime: dateOf(entry.createTime),
    tokenCount: entry.tokenCount,
    chainHash: entry.chainHash,
    writer: {
      runId: present(entry.writer?.runId ?? ""),
      service: present(entry.writer?.service ?? ""),
      client: present(entry.writer?.client ?? ""),
    },
    body: bodyView(entry.body?.kind),
  };
}

function bodyView(kind: EntryBody["kind"] | undefined): Body {
  switch (kind?.case) {
    case "header":
      return {
        type: "header",
        sessionId: kind.value.sessionId,
        forkedFromSessionId: present(kind.value.forkedFromSessionId),
      };
    case "message":
      return { type: "message", ...messageView(kind.value) };
    case "systemNote":
      return { type: "systemNote", text: kind.value.text, topic: kind.value.topic };
    case "label":
      return { type: "label", entryId: kind.value.entryId, kind: nameOf(WireLabel, kind.value.kind) };
    case "modelChange":
      return {
        type: "modelChange",
        model: present(kind.value.model),
        thinkingLevel: present(kind.value.thinkingLevel),
      };
    case "compaction":
      return {
        type: "compaction",
        summary: kind.value.summary,
        firstKeptEntryId: present(kind.value.firstKeptEntryId),
      };
    case "branchSummary":
      return {
        type: "branchSummary",
        summary: kind.value.summary,
        fromEntryId: present(kind.value.fromEntryId),
      };
    case "custom":
      return { type: "custom", customType: kind.value.customType, dataJson: present(kind.value.dataJson) };
    case "opaque":
      return { type: "opaque", opaqueType: kind.value.type, entryJson: kind.value.entryJson };
    case "mirror": {
      const { message, destination } = kind.value;
      if (message === undefined) return { type: "unknown" };
      return { type: "mirror", destination: present(destination), message: messageView(message) };
    }
    default:
      return { type: "unknown" };
  }
}

function messageView(message: WireMessage): Message {
  const content = message.content.map(blockView);
  return {
    role: nameOf(WireRole, message.role),
    content,
    text: content.map((block) => (block.type === "text" ? block.text : "")).join(""),
    toolCallId: present(message.toolCallId),
    toolName: present(message.toolName),
    isError: message.isError,
    model: present(message.model),
    usage: message.usage && usageView(message.usage),
    bashExecution: message.bashExecution && {
      command: message.bashExecution.command,
      exitCode: message.bashExecution.exitCode,
      isCancelled: message.bashExecution.isCancelled,
      isTruncated: message.bashExecution.isTruncated,
    },
    customType: present(message.customType),
  };
}

function blockView({ block }: WireBlock): Block {
  switch (block.case) {
    case "text":
      return { type: "text", text: block.value.text };
    case "thinking":
      return { type: "thinking", text: block.value.text };
    case "toolCall": {
      const { toolCallId, name, blockJson } = block.value;
      return { type: "toolCall", toolCallId, name, blockJson };
    }
    case "image":
      return { type: "image", mimeType: block.value.mimeType, data: block.value.data };
    default:
      return { type: "unknown" };
  }
}
