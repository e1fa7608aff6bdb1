// The agents of the tenant.

import { type ApprovalPolicy, policyMessage, policyView } from "./approvals.js";
import { ThinkingLevel as WireThinking } from "./gen/spawnmesh/content/v1/thinking_pb.js";
import type { AgentProfile as WireAgent } from "./gen/spawnmesh/session/v1/tenant_pb.js";
import { chosenName, valueOf } from "./names.js";
import type { Services } from "./services.js";
import type { ThinkingLevel } from "./views.js";

/** An agent to write. What is left out gets the default of the mesh. */
export interface AgentProfile {
  readonly agentId: string;
  readonly systemPrompt?: string;
  /** The models to call, in order, such as `openai/gpt-5`. */
  readonly models?: readonly string[];
  readonly tools?: readonly string[];
  readonly spawnableAgents?: readonly string[];
  readonly mcpServers?: readonly string[];
  /** The largest number of turns in one run. 0 means the default. */
  readonly maxTurnCount?: number;
  /** The tokens of the context of a model call. 0 means the default. */
  readonly contextTokenBudget?: number;
  readonly thinking?: ThinkingLevel | undefined;
  /** Which calls of its tools a person must approve. Left out: none. */
  readonly approval?: ApprovalPolicy | undefined;
  /** The etag on which the change is based. Left out: replace whatever there is. */
  readonly etag?: string;
}

/** An agent as the mesh has it. */
export interface Agent extends Required<AgentProfile> {
  /** 1 for a new agent, and one more with each change. */
  readonly version: number;
}

const PAGE_SIZE = 500;

/** List, read, write and delete agents. */
export class Agents {
  readonly #services: Services;

  constructor(services: Services) {
    this.#services = services;
  }

  /** Yield all agents by their ids. Pages are fetched as needed. */
  async *list(): AsyncGenerator<Agent, void, undefined> {
    let pageToken = "";
    do {
      const page = await this.#services.tenant.listAgents({ pageSize: PAGE_SIZE, pageToken });
      yield* page.agents.map(agentView);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /** Return one agent. Throws UNKNOWN_AGENT. */
  async get(agentId: string): Promise<Agent> {
    return agentView((await this.#services.tenant.getAgent({ agentId })).agent);
  }

  /**
   * Create an agent, or replace all of it. Runs that are claimed from now on use it. Throws ETAG_DIFFERS
   * if `etag` is given and the agent has another one.
   */
  async put(agent: AgentProfile): Promise<Agent> {
    return this.#update(agent, ["*"], true);
  }

  /**
   * Change these fields of an agent, such as `system_prompt`, to the values in `agent`. Without fields,
   * change those that are given and not empty. Throws UNKNOWN_AGENT, INVALID_REQUEST for a
   * field that cannot be changed, and ETAG_DIFFERS as `put`.
   */
  async update(agent: AgentProfile, fields: readonly string[] = []): Promise<Agent> {
    return this.#update(agent, fields, false);
  }

  async #update(agent: AgentProfile, paths: readonly string[], allowMissing: boolean): Promise<Agent> {
    const written = await this.#services.tenant.updateAgent({
      agent: {
        agentId: agent.agentId,
        systemPrompt: agent.systemPrompt ?? "",
        models: [...(agent.models ?? [])],
        tools: [...(agent.tools ?? [])],
        spawnableAgents: [...(agent.spawnableAgents ?? [])],
        mcpServers: [...(agent.mcpServers ?? [])],
        maxTurnCount: agent.maxTurnCount ?? 0,
        contextTokenBudget: agent.contextTokenBudget ?? 0,
        thinking: valueOf(WireThinking, agent.thinking),
        etag: agent.etag ?? "",
        ...(agent.approval && { approval: policyMessage(agent.approval) }),
      },
      updateMask: { paths: [...paths] },
      allowMissing,
    });
    return agentView(written.agent);
  }

  /**
   * Delete an agent, if it exists. Runs that are claimed from now on fail. Throws ETAG_DIFFERS if `etag`
   * is given and the agent has another one.
   */
  async delete(agentId: string, options: { etag?: string } = {}): Promise<void> {
    await this.#services.tenant.deleteAgent({ agentId, etag: options.etag ?? "" });
  }
}

function agentView(agent: WireAgent | undefined): Agent {
  if (agent === undefined) throw new TypeError("the mesh answered without an agent");
  return {
    agentId: agent.agentId,
    systemPrompt: agent.systemPrompt,
    models: agent.models,
    tools: agent.tools,
    spawnableAgents: agent.spawnableAgents,
    mcpServers: agent.mcpServers,
    maxTurnCount: agent.maxTurnCount,
    contextTokenBudget: agent.contextTokenBudget,
    thinking: chosenName(WireThinking, agent.thinking),
    approval: agent.approval && policyView(agent.approval),
    version: Number(agent.version),
    etag: agent.etag,
  };
}
