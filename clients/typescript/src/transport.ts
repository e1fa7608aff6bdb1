// The transport of all clients: it adds the token, types the errors, and repeats what may be repeated.

import type {
  DescMessage,
  DescMethod,
  DescMethodStreaming,
  DescMethodUnary,
  MessageInitShape,
} from "@bufbuild/protobuf";
import { MethodOptions_IdempotencyLevel as Idempotency } from "@bufbuild/protobuf/wkt";
import type { ContextValues, StreamResponse, Transport, UnaryResponse } from "@connectrpc/connect";
import { refusalOf } from "./errors.js";
import { type Clock, type RetryPolicy, withRetries } from "./retry.js";

/** A bearer token, or a function that returns one before each call. */
export type Token = string | (() => string | Promise<string>);

type Header = ConstructorParameters<typeof Headers>[0];

/** What every call needs. */
export interface CallSettings {
  readonly token: Token;
  readonly timeoutMs: number;
  readonly retry: RetryPolicy;
  readonly clock: Clock;
}

/** Return whether the contract says that a repeat of the call changes nothing. */
export function isRepeatable(method: DescMethod): boolean {
  return method.idempotency !== Idempotency.IDEMPOTENCY_UNKNOWN;
}

/** Call one service of the mesh through another transport. */
export class MeshTransport implements Transport {
  // Private for logs too: they print neither the token nor the connection.
  readonly #inner: Transport;
  readonly #service: string;
  readonly #peer: string;
  readonly #settings: CallSettings;

  /** `service` is the id of the service, and `peer` the name of the address in errors. */
  constructor(inner: Transport, service: string, peer: string, settings: CallSettings) {
    this.#inner = inner;
    this.#service = service;
    this.#peer = peer;
    this.#settings = settings;
  }

  /** Make a call. It ends within `timeoutMs`, with all repeats. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    header: Header,
    input: MessageInitShape<I>,
    contextValues?: ContextValues,
  ): Promise<UnaryResponse<I, O>> {
    const { retry, clock } = this.#settings;
    const policy = isRepeatable(method) ? retry : { ...retry, maxAttempts: 1 };
    const attempt = (leftMs: number): Promise<UnaryResponse<I, O>> =>
      this.typed(signal, async () => {
        const headers = await this.headers(header);
        // The header of the deadline takes whole milliseconds alone.
        return this.#inner.unary(method, signal, Math.ceil(leftMs), headers, input, contextValues);
      });
    return withRetries(attempt, timeoutMs ?? this.#settings.timeoutMs, policy, clock, signal);
  }

  /** Open a stream. It is not repeated, and has no time limit unless `timeoutMs` is one. */
  async stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodStreaming<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    header: Header,
    input: AsyncIterable<MessageInitShape<I>>,
    contextValues?: ContextValues,
  ): Promise<StreamResponse<I, O>> {
    const wholeMs = timeoutMs && Math.ceil(timeoutMs);
    const response = await this.typed(signal, async () =>
      this.#inner.stream(method, signal, wholeMs, await this.headers(header), input, contextValues),
    );
    const messages = response.message[Symbol.asyncIterator]();
    const next = () => this.typed(signal, () => messages.next());
    return { ...response, message: { [Symbol.asyncIterator]: () => ({ next }) } };
  }

  private async headers(given: Header): Promise<Headers> {
    const { token } = this.#settings;
    const headers = new Headers(given);
    // A gateway has one address for all services, and several of them serve some contracts.
    headers.set("spawnmesh-service", this.#service);
    headers.set("authorization", `Bearer ${typeof token === "string" ? token : await token()}`);
    return headers;
  }

  /** Return what the call returns. Throws the signal's reason if it is aborted, or the typed refusal. */
  private async typed<T>(signal: AbortSignal | undefined, call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      signal?.throwIfAborted();
      throw refusalOf(error, this.#peer);
    }
  }
}
