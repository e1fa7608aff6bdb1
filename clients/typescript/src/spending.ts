// The tokens and the cost of a tenant's model calls.

import { type Timestamp, timestampFromDate } from "@bufbuild/protobuf/wkt";
import {
  type DayBudget as WireBudget,
  SpendDimension as WireDimension,
  type SpendRow as WireRow,
} from "./gen/spawnmesh/model_router/v1/spend_pb.js";
import { dateOf, type NameIn, valueOf } from "./names.js";
import type { Services } from "./services.js";

const PAGE_SIZE = 1000;
const MICROS = 1_000_000;

export type SpendDimension = NameIn<typeof WireDimension>;

/** The usage and the cost of calls. A row is the sum over the dimensions by which it is not grouped. */
export interface SpendRow {
  /** Midnight UTC. Absent if rows are not grouped by it. */
  readonly day: Date | undefined;
  /** Empty for calls without a run; `*` stands for all further agents of a day with very many. */
  readonly agentId: string;
  readonly model: string;
  readonly calls: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly cacheReadTokens: number;
  readonly cacheWriteTokens: number;
  /** In units of the currency. */
  readonly cost: number;
}

/** The limit of the current day, and what counts against it, in units of the currency. */
export interface DayBudget {
  readonly limit: number;
  readonly spent: number;
  readonly reserved: number;
  readonly renewTime: Date | undefined;
}

export interface Spending {
  readonly rows: readonly SpendRow[];
  /** Absent if the tenant's spending has no limit. */
  readonly budget: DayBudget | undefined;
  readonly currency: string;
}

/** Options of the spending: a span of days, and the dimensions of the rows. */
export interface SpendOptions {
  /** Only days that begin at this time or later. The last 30 days by default. */
  readonly start?: Date;
  /** Only days that begin before this time. */
  readonly end?: Date;
  /** Day, agent and model by default. */
  readonly groupBy?: readonly SpendDimension[];
}

/** Return the rows of all pages, and the budget as the last page has it. */
export async function spending(services: Services, options: SpendOptions): Promise<Spending> {
  const request = {
    groupBy: (options.groupBy ?? []).map((one) => valueOf(WireDimension, one)),
    ...(options.start && { startTime: timestampFromDate(options.start) }),
    ...(options.end && { endTime: timestampFromDate(options.end) }),
    pageSize: PAGE_SIZE,
  } satisfies { groupBy: number[]; startTime?: Timestamp; endTime?: Timestamp; pageSize: number };
  const rows: SpendRow[] = [];
  let pageToken = "";
  for (;;) {
    const page = await services.modelRouter.listSpend({ ...request, pageToken });
    rows.push(...page.rows.map(rowView));
    pageToken = page.nextPageToken;
    if (pageToken === "") return { rows, budget: budgetView(page.budget), currency: page.currency };
  }
}

function rowView(row: WireRow): SpendRow {
  return {
    day: dateOf(row.dayTime),
    agentId: row.agentId,
    model: row.model,
    calls: Number(row.callCount),
    inputTokens: Number(row.inputTokenCount),
    outputTokens: Number(row.outputTokenCount),
    cacheReadTokens: Number(row.cacheReadTokenCount),
    cacheWriteTokens: Number(row.cacheWriteTokenCount),
    cost: Number(row.costMicros) / MICROS,
  };
}

function budgetView(budget: WireBudget | undefined): DayBudget | undefined {
  return (
    budget && {
      limit: Number(budget.limitMicros) / MICROS,
      spent: Number(budget.spentMicros) / MICROS,
      reserved: Number(budget.reservedMicros) / MICROS,
      renewTime: dateOf(budget.renewTime),
    }
  );
}
