// The plugins of the tenant, which the mesh calls at hooks.

import { durationFromMs, durationMs, timestampFromDate } from "@bufbuild/protobuf/wkt";
import {
  type Delivery as WireDelivery,
  DeliveryDecision as WireDecision,
} from "./gen/spawnmesh/hook/v1/delivery_pb.js";
import { HookKind as WireHook } from "./gen/spawnmesh/hook/v1/event_pb.js";
import {
  FailurePolicy as WirePolicy,
  Grant as WireGrant,
  type Plugin as WirePlugin,
} from "./gen/spawnmesh/hook/v1/hook_service_pb.js";
import { chosenName, dateOf, type NameIn, nameOf, present, valueOf } from "./names.js";
import type { Services } from "./services.js";

export type HookKind = NameIn<typeof WireHook>;
export type FailurePolicy = NameIn<typeof WirePolicy>;
export type Grant = NameIn<typeof WireGrant>;
export type DeliveryDecision = NameIn<typeof WireDecision>;

/** A plugin to write. What is left out gets the default of the mesh. */
export interface PluginProfile {
  readonly name: string;
  /** `grpc://host:port`, or `https://host[:port]/path` of a webhook. */
  readonly endpoint: string;
  readonly hooks: readonly HookKind[];
  /** Higher priority comes first. */
  readonly priority?: number;
  /** How long a call may take. 15 s by default. */
  readonly timeoutMs?: number | undefined;
  /** What a failure means. */
  readonly failurePolicy?: FailurePolicy | undefined;
  /** What the plugin may see and do. */
  readonly grants?: readonly Grant[];
  /** The largest number of calls at a time in each replica. 0 means the default. */
  readonly maxConcurrentCalls?: number;
  /** How long a run waits for a plugin with the policy CLOSED that gives no answer. */
  readonly maxWaitMs?: number | undefined;
  /** The etag on which the change is based. Left out: replace whatever there is. */
  readonly etag?: string;
}

/** A plugin as the mesh has it. */
export interface Plugin extends Required<PluginProfile> {
  readonly paused: boolean;
  /** It belongs to the operator, and tenants cannot change it. */
  readonly bundled: boolean;
}

/** A plugin, and the secret that signs the calls of a webhook. */
export interface PluginWithSecret {
  readonly plugin: Plugin;
  /** Absent for a plugin that is called by gRPC. */
  readonly secret: string | undefined;
}

/** One call of a plugin. */
export interface PluginDelivery {
  readonly plugin: string;
  readonly hook: HookKind;
  readonly sessionId: string | undefined;
  readonly runId: string | undefined;
  readonly startTime: Date | undefined;
  readonly latencyMs: number | undefined;
  readonly decision: DeliveryDecision;
  /** Why the call failed. */
  readonly error: string | undefined;
  readonly attempt: number;
}

/** Options of a list of calls, which must fulfil all that are given. */
export interface PluginDeliveriesOptions {
  readonly plugin?: string;
  readonly sessionId?: string;
  readonly runId?: string;
  readonly decision?: DeliveryDecision;
  /** Calls at this time or later. */
  readonly since?: Date;
  /** Calls before this time. */
  readonly before?: Date;
}

const PAGE_SIZE = 500;
const REACH_MS = 60_000;
const TEST_MS = 600_000;

/** Register, read, pause, test and delete plugins. */
export class Plugins {
  readonly #services: Services;

  constructor(services: Services) {
    this.#services = services;
  }

  /** Yield all plugins. Pages are fetched as needed. */
  async *list(): AsyncGenerator<Plugin, void, undefined> {
    let pageToken = "";
    do {
      const page = await this.#services.hook.listPlugins({ pageSize: PAGE_SIZE, pageToken });
      yield* page.plugins.map(pluginView);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /** Return one plugin. Throws NotFound. */
  async get(name: string): Promise<Plugin> {
    return pluginView((await this.#services.hook.getPlugin({ name })).plugin);
  }

  /**
   * Register a plugin, or replace all of it. Return it with the defaults filled in. Throws a MeshError if
   * nothing answers at the endpoint, unless `allowUnreachable`, and Aborted ETAG_DIFFERS if `etag` is given
   * and the plugin has another one.
   */
  async register(
    plugin: PluginProfile,
    options: { allowUnreachable?: boolean } = {},
  ): Promise<PluginWithSecret> {
    return this.#update(plugin, ["*"], true, options);
  }

  /**
   * Change these fields of a plugin, such as `priority`, to the values in `plugin`. Throws NotFound,
   * InvalidArgument for a field that cannot be changed, and what `register` throws.
   */
  async update(
    plugin: Partial<PluginProfile> & { readonly name: string },
    fields: readonly string[],
    options: { allowUnreachable?: boolean } = {},
  ): Promise<PluginWithSecret> {
    return this.#update(plugin, fields, false, options);
  }

  /** Stop calling the plugin until it is resumed. */
  async pause(name: string): Promise<Plugin> {
    return pluginView((await this.#services.hook.pausePlugin({ name })).plugin);
  }

  /** Call a paused plugin again. */
  async resume(name: string): Promise<Plugin> {
    return pluginView((await this.#services.hook.resumePlugin({ name })).plugin);
  }

  /** Call the plugin with an event of each of its hooks, and return its decisions. */
  async test(name: string): Promise<readonly PluginDelivery[]> {
    const answer = await this.#services.hook.testPlugin({ name }, { timeoutMs: TEST_MS });
    return answer.deliveries.map(deliveryView);
  }

  /** Delete the plugin, if it exists. With an etag, this version alone: Aborted ETAG_DIFFERS. */
  async delete(name: string, options: { etag?: string } = {}): Promise<void> {
    await this.#services.hook.deletePlugin({ name, etag: options.etag ?? "" });
  }

  /** Yield the calls of plugins, newest first. Pages are fetched as needed. */
  async *deliveries(
    options: PluginDeliveriesOptions = {},
  ): AsyncGenerator<PluginDelivery, void, undefined> {
    const { plugin = "", sessionId = "", runId = "", since, before } = options;
    const request = {
      plugin,
      sessionId,
      runId,
      decision: valueOf(WireDecision, options.decision),
      ...(since && { startTime: timestampFromDate(since) }),
      ...(before && { endTime: timestampFromDate(before) }),
      pageSize: PAGE_SIZE,
    };
    let pageToken = "";
    do {
      const page = await this.#services.hook.listDeliveries({ ...request, pageToken });
      yield* page.deliveries.map(deliveryView);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  async #update(
    plugin: Partial<PluginProfile> & { readonly name: string },
    paths: readonly string[],
    allowMissing: boolean,
    options: { allowUnreachable?: boolean },
  ): Promise<PluginWithSecret> {
    const { timeoutMs, maxWaitMs } = plugin;
    const request = {
      plugin: {
        name: plugin.name,
        endpoint: plugin.endpoint ?? "",
        hooks: (plugin.hooks ?? []).map((hook) => valueOf(WireHook, hook)),
        priority: plugin.priority ?? 0,
        failurePolicy: valueOf(WirePolicy, plugin.failurePolicy),
        grants: (plugin.grants ?? []).map((grant) => valueOf(WireGrant, grant)),
        maxConcurrentCalls: plugin.maxConcurrentCalls ?? 0,
        etag: plugin.etag ?? "",
        ...(timeoutMs !== undefined && { timeout: durationFromMs(timeoutMs) }),
        ...(maxWaitMs !== undefined && { maxWait: durationFromMs(maxWaitMs) }),
      },
      updateMask: { paths: [...paths] },
      allowMissing,
      allowUnreachable: options.allowUnreachable ?? false,
    };
    const written = await this.#services.hook.updatePlugin(request, { timeoutMs: REACH_MS });
    return { plugin: pluginView(written.plugin), secret: present(written.webhookSecret) };
  }
}

function pluginView(plugin: WirePlugin | undefined): Plugin {
  if (plugin === undefined) throw new TypeError("the mesh answered without a plugin");
  return {
    name: plugin.name,
    endpoint: plugin.endpoint,
    hooks: plugin.hooks.map((hook) => nameOf(WireHook, hook)),
    priority: plugin.priority,
    timeoutMs: plugin.timeout && durationMs(plugin.timeout),
    failurePolicy: chosenName(WirePolicy, plugin.failurePolicy),
    grants: plugin.grants.map((grant) => nameOf(WireGrant, grant)),
    maxConcurrentCalls: plugin.maxConcurrentCalls,
    maxWaitMs: plugin.maxWait && durationMs(plugin.maxWait),
    paused: plugin.paused,
    bundled: plugin.bundled,
    etag: plugin.etag,
  };
}

function deliveryView(delivery: WireDelivery): PluginDelivery {
  return {
    plugin: delivery.plugin,
    hook: nameOf(WireHook, delivery.hook),
    sessionId: present(delivery.sessionId),
    runId: present(delivery.runId),
    startTime: dateOf(delivery.startTime),
    latencyMs: delivery.latency && durationMs(delivery.latency),
    decision: nameOf(WireDecision, delivery.decision),
    error: present(delivery.error),
    attempt: delivery.attempt,
  };
}
