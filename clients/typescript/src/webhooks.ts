// Webhooks: addresses outside of the mesh that are sent the events of the tenant.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, durationMs, timestampFromDate } from "@bufbuild/protobuf/wkt";
import {
  type Webhook as WireWebhook,
  type WebhookAttempt as WireAttempt,
  type WebhookDelivery as WireDelivery,
  WebhookDeliveryState as WireState,
  WebhookEventType as WireType,
  type WebhookSchema,
} from "./gen/spawnmesh/hook/v1/webhook_pb.js";
import type { ReplayWebhookDeliveriesRequestSchema } from "./gen/spawnmesh/hook/v1/webhook_service_pb.js";
import { dateOf, type NameIn, nameOf, present, valueOf } from "./names.js";
import { newRequestId } from "./request_id.js";
import type { Services } from "./services.js";

export type WebhookDeliveryState = NameIn<typeof WireState>;

const TYPES = {
  "session.started": WireType.SESSION_STARTED,
  "session.ended": WireType.SESSION_ENDED,
  "run.ended": WireType.RUN_ENDED,
  "approval.requested": WireType.APPROVAL_REQUESTED,
  "approval.escalated": WireType.APPROVAL_ESCALATED,
  "approval.decided": WireType.APPROVAL_DECIDED,
  "budget.reached": WireType.BUDGET_REACHED,
  "budget.changed": WireType.BUDGET_CHANGED,
  "files.published": WireType.FILES_PUBLISHED,
  "transcript.compacted": WireType.TRANSCRIPT_COMPACTED,
} as const;
const TEST = "webhook.test";
const LOGGED_TYPES = { ...TYPES, [TEST]: WireType.WEBHOOK_TEST } as const;

/** The events that a webhook can be sent. A newer mesh has more. */
export type WebhookEventType = keyof typeof TYPES;
/** The events in the log of a webhook: `webhook.test`, too. */
export type LoggedEventType = keyof typeof LOGGED_TYPES;

/** A webhook to write. */
export interface WebhookOptions {
  /** `https://host[:port]/path`. */
  readonly url: string;
  /** The events that it is sent. All of them by default. Later versions have more: `put` it again. */
  readonly eventTypes?: readonly WebhookEventType[] | undefined;
  /** How long a request may take. 15 s by default. */
  readonly timeoutMs?: number | undefined;
}

/** What changes of a webhook. Fields that are absent stay as they are. */
export interface WebhookChange extends Partial<Omit<WebhookOptions, "timeoutMs">> {
  /** How long a request may take. null sets the default. */
  readonly timeoutMs?: number | null | undefined;
}

/** What a write of a webhook depends on. */
export interface WebhookConditions {
  /** Accept an address at which nothing answers yet. */
  readonly allowUnreachable?: boolean;
  /** Write this version alone. */
  readonly etag?: string;
}

/** A webhook as the mesh has it. */
export interface Webhook {
  readonly name: string;
  readonly url: string;
  /** Empty if it is sent all events. A type of a newer mesh is its number. */
  readonly eventTypes: readonly WebhookEventType[];
  readonly timeoutMs: number | undefined;
  /** Its messages wait until it is resumed. */
  readonly paused: boolean;
  /** Why the mesh paused it. Absent if a person did. */
  readonly pauseReason: string | undefined;
  /** Since when every message has failed. */
  readonly failingSinceTime: Date | undefined;
  /** Until when the secret before the last rotation signs, too. */
  readonly previousSecretExpireTime: Date | undefined;
  readonly createTime: Date | undefined;
  readonly etag: string;
}

/** A webhook and the secret that signs its messages: `whsec_` and base64. */
export interface WebhookWithSecret {
  readonly webhook: Webhook;
  readonly secret: string;
}

/** One request to a webhook. */
export interface WebhookAttempt {
  readonly startTime: Date | undefined;
  readonly latencyMs: number | undefined;
  /** The HTTP status. Absent without an answer. */
  readonly statusCode: number | undefined;
  /** Why the message was not received. */
  readonly error: string | undefined;
}

/** A message to a webhook, in the log. */
export interface WebhookDelivery {
  /** The `webhook-id` of the message. */
  readonly eventId: string;
  readonly eventType: LoggedEventType;
  readonly sessionId: string | undefined;
  readonly runId: string | undefined;
  /** PENDING, then one of the others until it is replayed. */
  readonly state: WebhookDeliveryState;
  readonly eventTime: Date | undefined;
  readonly queueTime: Date | undefined;
  /** When it was received or given up. */
  readonly endTime: Date | undefined;
  readonly attemptCount: number;
  /** The newest requests, oldest first. */
  readonly attempts: readonly WebhookAttempt[];
  readonly bodyJson: string;
}

/** Options of a list of deliveries, which must fulfil all that are given. */
export interface WebhookDeliveriesOptions {
  readonly state?: WebhookDeliveryState;
  readonly eventType?: LoggedEventType;
  readonly sessionId?: string;
  /** Events at this time or later. */
  readonly since?: Date;
  /** Events before this time. */
  readonly before?: Date;
}

const PAGE_SIZE = 500;
const REACH_MS = 60_000;
const EVERY_FIELD = "*";

/** List, read, write and test webhooks, and replay what they were sent. */
export class Webhooks {
  readonly #services: Services;

  constructor(services: Services) {
    this.#services = services;
  }

  /** Yield the webhooks of the tenant by their names. Pages are fetched as needed. */
  async *list(): AsyncGenerator<Webhook, void, undefined> {
    let pageToken = "";
    do {
      const page = await this.#services.webhook.listWebhooks({ pageSize: PAGE_SIZE, pageToken });
      yield* page.webhooks.map(webhookView);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /** Return one webhook. Throws NotFound. */
  async get(name: string): Promise<Webhook> {
    return webhookView((await this.#services.webhook.getWebhook({ name })).webhook);
  }

  /**
   * Create a webhook, or replace all of the one with this name. Throws TypeError for an unknown type,
   * FailedPrecondition ENDPOINT_NOT_ALLOWED or ENDPOINT_NOT_REACHED, and Aborted ETAG_DIFFERS.
   */
  async put(
    name: string,
    options: WebhookOptions,
    conditions: WebhookConditions = {},
  ): Promise<WebhookWithSecret> {
    return this.#update(name, options, [EVERY_FIELD], conditions);
  }

  /**
   * Change what is given of a webhook, and nothing else. Throws NotFound, TypeError if nothing is given,
   * and what `put` throws.
   */
  async update(
    name: string,
    change: WebhookChange,
    conditions: WebhookConditions = {},
  ): Promise<WebhookWithSecret> {
    const paths = Object.entries(FIELDS).flatMap(([field, path]) =>
      change[field as keyof WebhookChange] === undefined ? [] : [path],
    );
    if (paths.length === 0) {
      throw new TypeError(`name a field that changes: ${Object.keys(FIELDS).join(", ")}`);
    }
    return this.#update(name, change, paths, conditions);
  }

  async #update(
    name: string,
    options: WebhookChange,
    paths: string[],
    { allowUnreachable = false, etag = "" }: WebhookConditions,
  ): Promise<WebhookWithSecret> {
    const webhook: MessageInitShape<typeof WebhookSchema> = {
      name,
      etag,
      url: options.url ?? "",
      eventTypes: (options.eventTypes ?? []).map((type) => typeOf(TYPES, type)),
      ...(typeof options.timeoutMs === "number" && { timeout: durationFromMs(options.timeoutMs) }),
    };
    const allowMissing = paths.includes(EVERY_FIELD);
    const request = { webhook, updateMask: { paths }, allowMissing, allowUnreachable };
    const answer = await this.#services.webhook.updateWebhook(request, { timeoutMs: REACH_MS });
    return { webhook: webhookView(answer.webhook), secret: answer.secret };
  }

  /** Let the messages wait until the webhook is resumed. Throws NotFound. */
  async pause(name: string): Promise<Webhook> {
    return webhookView((await this.#services.webhook.pauseWebhook({ name })).webhook);
  }

  /** Send the messages that wait now, also if the mesh paused the webhook. Throws NotFound. */
  async resume(name: string): Promise<Webhook> {
    return webhookView((await this.#services.webhook.resumeWebhook({ name })).webhook);
  }

  /** Delete the webhook with its deliveries, if it exists. Throws Aborted ETAG_DIFFERS. */
  async delete(name: string, options: { etag?: string } = {}): Promise<void> {
    await this.#services.webhook.deleteWebhook({ name, etag: options.etag ?? "" });
  }

  /**
   * Give the webhook another secret. The previous one signs too for `keepPreviousMs`: a day by default,
   * and not at all with 0. A repeat of the last `requestId` returns the same secret. Throws NotFound.
   */
  async rotateSecret(
    name: string,
    options: { keepPreviousMs?: number; requestId?: string } = {},
  ): Promise<WebhookWithSecret> {
    const { keepPreviousMs, requestId = newRequestId() } = options;
    const answer = await this.#services.webhook.rotateWebhookSecret({
      name,
      requestId,
      ...(keepPreviousMs !== undefined && { keepPrevious: durationFromMs(keepPreviousMs) }),
    });
    return { webhook: webhookView(answer.webhook), secret: answer.secret };
  }

  /**
   * Send the webhook a `webhook.test` once, even if it is paused, and return the delivery, whose state is
   * DELIVERED or FAILED. Throws NotFound.
   */
  async test(name: string): Promise<WebhookDelivery> {
    const answer = await this.#services.webhook.testWebhook({ name }, { timeoutMs: REACH_MS });
    if (answer.delivery === undefined) throw new TypeError("the mesh answered without a delivery");
    return deliveryView(answer.delivery);
  }

  /** Yield the messages of a webhook, newest event first. Pages are fetched as needed. Throws NotFound. */
  async *deliveries(
    name: string,
    options: WebhookDeliveriesOptions = {},
  ): AsyncGenerator<WebhookDelivery, void, undefined> {
    const { state, eventType, sessionId = "", since, before } = options;
    const request = {
      name,
      state: valueOf(WireState, state),
      eventType: eventType === undefined ? WireType.UNSPECIFIED : typeOf(LOGGED_TYPES, eventType),
      sessionId,
      pageSize: PAGE_SIZE,
      ...(since !== undefined && { startTime: timestampFromDate(since) }),
      ...(before !== undefined && { endTime: timestampFromDate(before) }),
    };
    let pageToken = "";
    do {
      const page = await this.#services.webhook.listWebhookDeliveries({ ...request, pageToken });
      yield* page.deliveries.map(deliveryView);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /**
   * Send up to 100 messages again, with the same ids and bodies, and return how many were queued. One that
   * is pending stays as it is. Throws NotFound, with nothing queued, if there is no such message.
   */
  async replay(name: string, eventIds: readonly string[]): Promise<number> {
    return this.#replay(name, { case: "events", value: { eventIds: [...eventIds] } });
  }

  /**
   * Send all messages again that were given up, of events at this time or later. Return how many were
   * queued. Throws NotFound.
   */
  async replayFailed(name: string, since: Date): Promise<number> {
    return this.#replay(name, { case: "failedSinceTime", value: timestampFromDate(since) });
  }

  async #replay(name: string, messages: Messages): Promise<number> {
    let count = 0;
    for (;;) {
      const answer = await this.#services.webhook.replayWebhookDeliveries({ name, messages });
      count += answer.replayedCount;
      if (!answer.isPartial) return count;
    }
  }
}

type Messages = NonNullable<MessageInitShape<typeof ReplayWebhookDeliveriesRequestSchema>["messages"]>;

const FIELDS = { url: "url", eventTypes: "event_types", timeoutMs: "timeout" } as const;
const TEXTS: Record<number, LoggedEventType | undefined> = Object.fromEntries(
  Object.entries(LOGGED_TYPES).map(([text, value]) => [value, text as LoggedEventType]),
);

function typeOf<T extends Readonly<Record<string, WireType>>>(types: T, text: keyof T & string): WireType {
  const value = Object.hasOwn(types, text) ? types[text] : undefined;
  if (value !== undefined) return value;
  throw new TypeError(`${JSON.stringify(text)} is none of ${Object.keys(types).join(", ")}`);
}

function textOf(value: number): LoggedEventType {
  return TEXTS[value] ?? (String(value) as LoggedEventType);
}

function webhookView(webhook: WireWebhook | undefined): Webhook {
  if (webhook === undefined) throw new TypeError("the mesh answered without a webhook");
  return {
    name: webhook.name,
    url: webhook.url,
    eventTypes: webhook.eventTypes.map((type) => textOf(type) as WebhookEventType),
    timeoutMs: webhook.timeout && durationMs(webhook.timeout),
    paused: webhook.paused,
    pauseReason: present(webhook.pauseReason),
    failingSinceTime: dateOf(webhook.failingSinceTime),
    previousSecretExpireTime: dateOf(webhook.previousSecretExpireTime),
    createTime: dateOf(webhook.createTime),
    etag: webhook.etag,
  };
}

function deliveryView(delivery: WireDelivery): WebhookDelivery {
  return {
    eventId: delivery.eventId,
    eventType: textOf(delivery.eventType),
    sessionId: present(delivery.sessionId),
    runId: present(delivery.runId),
    state: nameOf(WireState, delivery.state),
    eventTime: dateOf(delivery.eventTime),
    queueTime: dateOf(delivery.queueTime),
    endTime: dateOf(delivery.endTime),
    attemptCount: delivery.attemptCount,
    attempts: delivery.attempts.map(attemptView),
    bodyJson: delivery.bodyJson,
  };
}

function attemptView(attempt: WireAttempt): WebhookAttempt {
  return {
    startTime: dateOf(attempt.startTime),
    latencyMs: attempt.latency && durationMs(attempt.latency),
    statusCode: attempt.statusCode || undefined,
    error: present(attempt.error),
  };
}
