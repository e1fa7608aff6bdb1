// Budgets of sessions and their families, and what was used of them.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, durationMs } from "@bufbuild/protobuf/wkt";
import {
  type Budget as WireBudgetLimits,
  type BudgetSchema,
  BudgetLimit as WireLimit,
  type GetSessionUsageResponse as WireSessionUsage,
  type SessionBudget as WireBudget,
  type UsageTotal as WireTotal,
} from "./gen/spawnmesh/session/v1/budget_pb.js";
import { dateOf, type NameIn, nameOf, present } from "./names.js";
import { type TokenUsage, usageView } from "./views.js";

export type BudgetLimit = NameIn<typeof WireLimit>;

/** What a session and all its descendants may use together. Every limit is above 0. */
export interface Budget {
  /** The cost in units of the currency, such as 0.5. */
  readonly cost?: number | undefined;
  /** The tokens: input, with cache reads, and output. */
  readonly tokens?: number | undefined;
  /** The model calls. */
  readonly calls?: number | undefined;
  /** The time for which runners work, over all runs. Runs that work at the same time count each. */
  readonly runTimeMs?: number | undefined;
  /** How long a run waits for a higher limit before it fails. Seven days by default; 0 fails it at once. */
  readonly waitMs?: number | undefined;
}

/** A change of limits: those that are absent stay as they are, and null removes one. */
export type BudgetChange = { readonly [limit in keyof Budget]?: number | null | undefined };

/** What a session and its descendants have used of a budget. */
export interface BudgetUsage {
  readonly cost: number;
  readonly tokens: number;
  /** The model calls that have begun. */
  readonly calls: number;
  /** The time for which runners worked, up to the newest model calls. */
  readonly runTimeMs: number;
}

/** The budget of a session, which its descendants share. */
export interface SessionBudget {
  readonly sessionId: string;
  readonly budget: Budget;
  readonly usage: BudgetUsage;
  /** The limits that are used up: until they are raised, no model call begins. */
  readonly reached: readonly BudgetLimit[];
  /** The version of the limits. */
  readonly etag: string;
  readonly updateTime: Date | undefined;
  /** The subject whose token changed the limits last. */
  readonly updatedBy: string | undefined;
}

/** What the runs of one or several sessions have used that have ended. */
export interface UsageSum extends TokenUsage {
  readonly sessionCount: number;
  readonly endedRunCount: number;
}

/** What a session and its family have used. */
export interface SessionUsage {
  readonly session: UsageSum;
  /** The session and its descendants. */
  readonly family: UsageSum;
  /** There are more than 10,000 sessions, and `family` counts the first. */
  readonly isFamilyPartial: boolean;
  /** The budgets of the ancestors, the outermost first, and the session's own. They count all runs. */
  readonly budgets: readonly SessionBudget[];
}

type WireLimits = MessageInitShape<typeof BudgetSchema>;

const FIELDS = {
  cost: "max_cost_micros",
  tokens: "max_token_count",
  calls: "max_model_call_count",
  runTimeMs: "max_run_time",
  waitMs: "max_wait",
} as const;
const MICROS = 1_000_000;

/** Return the limits as a message. Throws TypeError for a limit that is 0, negative or no number. */
export function budgetMessage(budget: BudgetChange): WireLimits {
  const { cost, tokens, calls, runTimeMs, waitMs } = budget;
  return {
    ...(isLimit(cost) && { maxCostMicros: wholeOf("cost", Math.round(cost * MICROS), cost) }),
    ...(isLimit(tokens) && { maxTokenCount: wholeOf("tokens", tokens, tokens) }),
    ...(isLimit(calls) && { maxModelCallCount: wholeOf("calls", calls, calls) }),
    ...(isLimit(runTimeMs) && { maxRunTime: durationFromMs(timeOf("runTimeMs", runTimeMs, 1)) }),
    ...(isLimit(waitMs) && { maxWait: durationFromMs(timeOf("waitMs", waitMs, 0)) }),
  };
}

/** Return the paths of the fields that the change names. Throws TypeError if it names none. */
export function changedPaths(change: BudgetChange): string[] {
  const paths = Object.entries(FIELDS).flatMap(([name, path]) =>
    change[name as keyof Budget] === undefined ? [] : [path],
  );
  if (paths.length > 0) return paths;
  throw new TypeError(`name a limit that changes: ${Object.keys(FIELDS).join(", ")}`);
}

export function sessionUsageView(answer: WireSessionUsage): SessionUsage {
  return {
    session: totalView(answer.session),
    family: totalView(answer.family),
    isFamilyPartial: answer.isFamilyPartial,
    budgets: answer.budgets.map(budgetView),
  };
}

export function budgetView(one: WireBudget): SessionBudget {
  const { budget, usage } = one;
  return {
    sessionId: one.sessionId,
    budget: limitsView(budget),
    usage: {
      cost: Number(usage?.costMicros ?? 0) / MICROS,
      tokens: Number(usage?.tokenCount ?? 0),
      calls: Number(usage?.modelCallCount ?? 0),
      runTimeMs: usage?.runTime ? durationMs(usage.runTime) : 0,
    },
    reached: one.reachedLimits.map((limit) => nameOf(WireLimit, limit)),
    etag: one.etag,
    updateTime: dateOf(one.updateTime),
    updatedBy: present(one.updatedBy),
  };
}

export function limitsView(budget: WireBudgetLimits | undefined): Budget {
  return {
    cost: budget?.maxCostMicros ? Number(budget.maxCostMicros) / MICROS : undefined,
    tokens: Number(budget?.maxTokenCount ?? 0) || undefined,
    calls: Number(budget?.maxModelCallCount ?? 0) || undefined,
    runTimeMs: (budget?.maxRunTime && durationMs(budget.maxRunTime)) || undefined,
    waitMs: budget?.maxWait && durationMs(budget.maxWait),
  };
}

function totalView(total: WireTotal | undefined): UsageSum {
  return {
    ...usageView(total?.usage),
    sessionCount: Number(total?.sessionCount ?? 0),
    endedRunCount: Number(total?.endedRunCount ?? 0),
  };
}

function isLimit(value: number | null | undefined): value is number {
  return value !== undefined && value !== null;
}

function wholeOf(name: string, value: number, given: number): bigint {
  if (Number.isSafeInteger(value) && value > 0) return BigInt(value);
  throw new TypeError(`${name} is no limit above 0: ${given}`);
}

function timeOf(name: string, value: number, least: number): number {
  if (Number.isFinite(value) && value >= least) return Math.round(value);
  throw new TypeError(`${name} is no time of at least ${least} ms: ${value}`);
}
