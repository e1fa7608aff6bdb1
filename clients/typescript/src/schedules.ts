// Schedules: cron lines that spawn sessions.

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, durationMs, timestampDate, timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { FileReference } from "./attachments.js";
import { type Budget, budgetMessage, limitsView } from "./budgets.js";
import { MeshError } from "./errors.js";
import { ThinkingLevel as WireThinking } from "./gen/spawnmesh/content/v1/thinking_pb.js";
import {
  CatchUpPolicy as WireCatchUp,
  FiringOutcome as WireOutcome,
  OverlapPolicy as WireOverlap,
  type Schedule as WireSchedule,
  type ScheduledSpawn as WireSpawn,
  ScheduledSpawnSchema,
  type ScheduleFiring as WireFiring,
  type ScheduleSchema,
} from "./gen/spawnmesh/session/v1/schedule_pb.js";
import {
  Cleanup as WireCleanup,
  Runtime as WireRuntime,
  SessionMode as WireMode,
} from "./gen/spawnmesh/session/v1/session_pb.js";
import { chosenName, dateOf, type NameIn, nameOf, present, valueOf } from "./names.js";
import { newRequestId } from "./request_id.js";
import type { Services } from "./services.js";
import type { Cleanup, Runtime, SessionMode, ThinkingLevel } from "./views.js";

export type OverlapPolicy = NameIn<typeof WireOverlap>;
export type CatchUpPolicy = NameIn<typeof WireCatchUp>;
export type FiringOutcome = NameIn<typeof WireOutcome>;

/** The session that a schedule spawns. */
export interface ScheduledSpawn {
  readonly task: string;
  /** A name for people. */
  readonly label?: string | undefined;
  /** The agent, by default `default`. */
  readonly agentId?: string | undefined;
  /** The model to call instead of the agent's first one. */
  readonly model?: string | undefined;
  readonly mode?: SessionMode | undefined;
  readonly cleanup?: Cleanup | undefined;
  readonly runtime?: Runtime | undefined;
  /** How long each run may take. An hour by default. */
  readonly runTimeoutMs?: number | undefined;
  readonly thinking?: ThinkingLevel | undefined;
  /** What the sessions are to be found by. The key `schedule` is set to the name of the schedule. */
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  /** Files that the mesh has, of sets that are kept. */
  readonly references?: readonly FileReference[] | undefined;
  /** What each session and all its descendants may use. */
  readonly budget?: Budget | undefined;
}

/** A schedule to write. */
export interface ScheduleOptions extends ScheduledSpawn {
  /** A cron line such as `0 9 * * 1-5`: minute, hour, day of month, month, day of week. */
  readonly cron: string;
  /** A time zone such as `Europe/Berlin`. `UTC` by default. */
  readonly timeZone?: string | undefined;
  /** What happens while the session of an earlier firing goes on. SKIP by default. */
  readonly overlap?: OverlapPolicy | undefined;
  /** Which missed due times are fired. NONE by default. */
  readonly catchUp?: CatchUpPolicy | undefined;
}

/** A change of a schedule: what is absent stays as it is, and null is the default. */
export type ScheduleChange = {
  readonly [field in keyof ScheduleOptions]?:
    | ScheduleOptions[field]
    | (field extends "cron" | "task" ? never : null)
    | undefined;
};

/** A due time, or a call of `run`, in the history of a schedule. */
export interface ScheduleFiring {
  readonly firingId: string;
  /** The due time, or for `run` the time of the call. */
  readonly dueTime: Date | undefined;
  /** When it was fired, skipped or found to be missed. */
  readonly fireTime: Date | undefined;
  readonly outcome: FiringOutcome;
  /** The session that was spawned; for SKIPPED the one that went on. */
  readonly sessionId: string | undefined;
  /** For FAILED: the reason of the refusal, such as `RUN_QUEUE_FULL`. */
  readonly errorReason: string | undefined;
  readonly errorMessage: string | undefined;
  /** `run` was called. Otherwise the cron line was due. */
  readonly isManual: boolean;
}

/** A schedule as the mesh has it. */
export interface Schedule {
  readonly name: string;
  readonly cron: string;
  readonly timeZone: string;
  readonly spawn: ScheduledSpawn;
  readonly overlap: OverlapPolicy;
  readonly catchUp: CatchUpPolicy;
  readonly paused: boolean;
  /** The next five due times. None if it is paused. */
  readonly upcomingTimes: readonly Date[];
  readonly lastFiring: ScheduleFiring | undefined;
  readonly createTime: Date | undefined;
  /** The subject whose token wrote it last. */
  readonly updatedBy: string | undefined;
  readonly etag: string;
}

/** Options of a history, whose firings must fulfil all that are given. */
export interface FiringsOptions {
  readonly outcome?: FiringOutcome;
  /** Due times at this time or later. */
  readonly since?: Date;
  /** Due times before this time. */
  readonly before?: Date;
}

const PAGE_SIZE = 500;
const SPAWN_MS = 60_000;
const MOST_READS = 5;
const EVERY_FIELD = "*";

/** List, read, write and run schedules. */
export class Schedules {
  readonly #services: Services;

  constructor(services: Services) {
    this.#services = services;
  }

  /** Yield the schedules of the tenant by their names. Pages are fetched as needed. */
  async *list(): AsyncGenerator<Schedule, void, undefined> {
    let pageToken = "";
    do {
      const page = await this.#services.schedule.listSchedules({ pageSize: PAGE_SIZE, pageToken });
      yield* page.schedules.map(scheduleView);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /** Return one schedule. Throws NotFound. */
  async get(name: string): Promise<Schedule> {
    return scheduleView((await this.#services.schedule.getSchedule({ name })).schedule);
  }

  /**
   * Create a schedule, or replace all of the one with this name. Throws TypeError for an unknown word,
   * InvalidArgument for a cron line that is malformed or never due, and Aborted ETAG_DIFFERS.
   */
  async put(
    name: string,
    options: ScheduleOptions,
    { etag = "" }: { etag?: string } = {},
  ): Promise<Schedule> {
    return this.#update({ name, etag, ...lineOf(options), spawn: spawnOf(options) }, [EVERY_FIELD]);
  }

  /**
   * Change what is given of a schedule, and nothing else. A change of the session that is spawned reads the
   * schedule first. Throws NotFound, TypeError if nothing is given, and what `put` throws.
   */
  async update(
    name: string,
    change: ScheduleChange,
    { etag = "" }: { etag?: string } = {},
  ): Promise<Schedule> {
    const line = lineOf(change);
    const parts = spawnOf(change);
    const paths = Object.keys(line).map((field) => LINE_FIELDS[field as keyof typeof LINE_FIELDS]);
    if (Object.keys(parts).length === 0) {
      if (paths.length === 0) throw new TypeError(`name a field that changes: ${KNOWN.join(", ")}`);
      return this.#update({ name, etag, ...line }, paths);
    }
    const whole = create(ScheduledSpawnSchema, parts);
    const changed = Object.fromEntries(
      Object.keys(parts).map((field) => [field, whole[field as keyof typeof parts]]),
    );
    for (let reads = 1; ; reads++) {
      const { schedule } = await this.#services.schedule.getSchedule({ name });
      const spawn = Object.assign(schedule?.spawn ?? create(ScheduledSpawnSchema), changed);
      const base = etag || (schedule?.etag ?? "");
      try {
        return await this.#update({ name, etag: base, ...line, spawn }, [...paths, "spawn"]);
      } catch (error) {
        const isStale = error instanceof MeshError && error.reason === "ETAG_DIFFERS";
        if (!isStale || etag !== "" || reads === MOST_READS) throw error;
      }
    }
  }

  async #update(schedule: MessageInitShape<typeof ScheduleSchema>, paths: string[]): Promise<Schedule> {
    const allowMissing = paths.includes(EVERY_FIELD);
    const request = { schedule, updateMask: { paths }, allowMissing };
    return scheduleView((await this.#services.schedule.updateSchedule(request)).schedule);
  }

  /** Fire nothing until the schedule is resumed. Its sessions go on. Throws NotFound. */
  async pause(name: string): Promise<Schedule> {
    return scheduleView((await this.#services.schedule.pauseSchedule({ name })).schedule);
  }

  /** Fire the due times from now on. Throws NotFound. */
  async resume(name: string): Promise<Schedule> {
    return scheduleView((await this.#services.schedule.resumeSchedule({ name })).schedule);
  }

  /** Delete the schedule with its history, if it exists. Throws Aborted ETAG_DIFFERS. */
  async delete(name: string, options: { etag?: string } = {}): Promise<void> {
    await this.#services.schedule.deleteSchedule({ name, etag: options.etag ?? "" });
  }

  /**
   * Spawn the session of a schedule now, also if it is paused, and return the firing, whose `sessionId`
   * `mesh.session` takes. A repeat of the `requestId` returns the same firing. Throws NotFound, and what
   * `mesh.spawn` throws.
   */
  async run(name: string, options: { requestId?: string } = {}): Promise<ScheduleFiring> {
    const request = { name, requestId: options.requestId ?? newRequestId() };
    const { firing } = await this.#services.schedule.runSchedule(request, { timeoutMs: SPAWN_MS });
    if (firing === undefined) throw new TypeError("the mesh answered without a firing");
    return firingView(firing);
  }

  /** Yield the history of a schedule, newest due time first. Pages are fetched as needed. Throws NotFound. */
  async *firings(
    name: string,
    options: FiringsOptions = {},
  ): AsyncGenerator<ScheduleFiring, void, undefined> {
    const { outcome, since, before } = options;
    const request = {
      name,
      outcome: valueOf(WireOutcome, outcome),
      pageSize: PAGE_SIZE,
      ...(since !== undefined && { startTime: timestampFromDate(since) }),
      ...(before !== undefined && { endTime: timestampFromDate(before) }),
    };
    let pageToken = "";
    do {
      const page = await this.#services.schedule.listScheduleFirings({ ...request, pageToken });
      yield* page.firings.map(firingView);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }
}

const LINE_FIELDS = { cron: "cron", timeZone: "time_zone", overlap: "overlap", catchUp: "catch_up" } as const;
const KNOWN = [
  ...Object.keys(LINE_FIELDS),
  ...["task", "label", "agentId", "model", "mode", "cleanup", "runtime", "runTimeoutMs", "thinking"],
  ...["metadata", "references", "budget"],
];

/** Return the fields of the message that are given, without the spawn. */
function lineOf({ cron, timeZone, overlap, catchUp }: ScheduleChange) {
  return {
    ...(cron !== undefined && { cron }),
    ...(timeZone !== undefined && { timeZone: timeZone ?? "" }),
    ...(overlap !== undefined && { overlap: valueOf(WireOverlap, overlap ?? undefined) }),
    ...(catchUp !== undefined && { catchUp: valueOf(WireCatchUp, catchUp ?? undefined) }),
  };
}

/** Return the fields of the spawn's message that are given. */
function spawnOf(given: ScheduleChange) {
  const { task, label, agentId, model, mode, cleanup, runtime, runTimeoutMs, thinking } = given;
  const { metadata, references, budget } = given;
  return {
    ...(task !== undefined && { task }),
    ...(label !== undefined && { label: label ?? "" }),
    ...(agentId !== undefined && { agentId: agentId ?? "" }),
    ...(model !== undefined && { model: model ?? "" }),
    ...(mode !== undefined && { mode: valueOf(WireMode, mode ?? undefined) }),
    ...(cleanup !== undefined && { cleanup: valueOf(WireCleanup, cleanup ?? undefined) }),
    ...(runtime !== undefined && { runtime: valueOf(WireRuntime, runtime ?? undefined) }),
    ...(runTimeoutMs !== undefined && {
      runTimeout: runTimeoutMs === null ? undefined : durationFromMs(runTimeoutMs),
    }),
    ...(thinking !== undefined && { thinking: valueOf(WireThinking, thinking ?? undefined) }),
    ...(metadata !== undefined && { metadata: { ...metadata } }),
    ...(references !== undefined && {
      references: (references ?? []).map(({ setId, name, newName = "" }) => ({ setId, name, newName })),
    }),
    ...(budget !== undefined && { budget: budget === null ? undefined : budgetMessage(budget) }),
  };
}

function scheduleView(schedule: WireSchedule | undefined): Schedule {
  if (schedule?.spawn === undefined) throw new TypeError("the mesh answered without a schedule");
  return {
    name: schedule.name,
    cron: schedule.cron,
    timeZone: schedule.timeZone,
    spawn: spawnView(schedule.spawn),
    overlap: nameOf(WireOverlap, schedule.overlap),
    catchUp: nameOf(WireCatchUp, schedule.catchUp),
    paused: schedule.paused,
    upcomingTimes: schedule.upcomingTimes.map(timestampDate),
    lastFiring: schedule.lastFiring && firingView(schedule.lastFiring),
    createTime: dateOf(schedule.createTime),
    updatedBy: present(schedule.updatedBy),
    etag: schedule.etag,
  };
}

function spawnView(spawn: WireSpawn): ScheduledSpawn {
  return {
    task: spawn.task,
    label: present(spawn.label),
    agentId: present(spawn.agentId),
    model: present(spawn.model),
    mode: chosenName(WireMode, spawn.mode),
    cleanup: chosenName(WireCleanup, spawn.cleanup),
    runtime: chosenName(WireRuntime, spawn.runtime),
    runTimeoutMs: spawn.runTimeout && durationMs(spawn.runTimeout),
    thinking: chosenName(WireThinking, spawn.thinking),
    metadata: { ...spawn.metadata },
    references: spawn.references.map(({ setId, name, newName }) =>
      newName === "" ? { setId, name } : { setId, name, newName },
    ),
    budget: spawn.budget && limitsView(spawn.budget),
  };
}

function firingView(firing: WireFiring): ScheduleFiring {
  return {
    firingId: firing.firingId,
    dueTime: dateOf(firing.dueTime),
    fireTime: dateOf(firing.fireTime),
    outcome: nameOf(WireOutcome, firing.outcome),
    sessionId: present(firing.sessionId),
    errorReason: present(firing.errorReason),
    errorMessage: present(firing.errorMessage),
    isManual: firing.isManual,
  };
}
