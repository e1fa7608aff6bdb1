// The models that a mesh can call.

import {
  type ModelInfo as WireModel,
  ProviderKind as WireKind,
} from "./gen/spawnmesh/model_router/v1/routing_pb.js";
import { ThinkingLevel as WireThinking } from "./gen/spawnmesh/content/v1/thinking_pb.js";
import { type NameIn, nameOf } from "./names.js";
import type { Services } from "./services.js";
import { type Spending, spending, type SpendOptions } from "./spending.js";
import type { ThinkingLevel } from "./views.js";

export type ProviderKind = NameIn<typeof WireKind>;

/** A model that an agent or a spawn may name. */
export interface Model {
  /** As `provider/model`. */
  readonly model: string;
  readonly providerKind: ProviderKind;
  /** The size of the context window, input and output together. */
  readonly contextWindowTokens: number;
  readonly maxOutputTokens: number;
  /** It can see images. */
  readonly vision: boolean;
  /** It can call tools. */
  readonly tools: boolean;
  readonly aliases: readonly string[];
  /** It is called if a request names none. */
  readonly isPrimary: boolean;
  /** The levels of thinking that it has, least first. */
  readonly thinkingLevels: readonly ThinkingLevel[];
}

/** List models, and what calls of them have cost. */
export class Models {
  readonly #services: Services;

  constructor(services: Services) {
    this.#services = services;
  }

  /** Yield the models by name. Pages are fetched as needed. */
  async *list(): AsyncGenerator<Model, void, undefined> {
    let pageToken = "";
    do {
      const page = await this.#services.modelRouter.listModels({ pageToken });
      yield* page.models.map(modelView);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /** Return what the tenant's model calls have cost, by day, agent and model or by some of these. */
  async spend(options: SpendOptions = {}): Promise<Spending> {
    return spending(this.#services, options);
  }
}

function modelView(model: WireModel): Model {
  return {
    model: model.model,
    providerKind: nameOf(WireKind, model.providerKind),
    contextWindowTokens: Number(model.contextWindowTokenCount),
    maxOutputTokens: Number(model.maxOutputTokenCount),
    vision: model.vision,
    tools: model.tools,
    aliases: model.aliases,
    isPrimary: model.isPrimary,
    thinkingLevels: model.thinkingLevels.map((level) => nameOf(WireThinking, level)),
  };
}
