// The exports of both entry points.

export type { Agent, AgentProfile, Agents } from "./agents.js";
export type {
  Approval,
  ApprovalPolicy,
  Approvals,
  ApprovalsOptions,
  ApprovalState,
  ApprovalSubject,
  ExpiryPolicy,
  JsonObject,
} from "./approvals.js";
export type { Attachment, FileReference, LocalAttachment } from "./attachments.js";
export type {
  Budget,
  BudgetChange,
  BudgetLimit,
  BudgetUsage,
  SessionBudget,
  SessionUsage,
  UsageSum,
} from "./budgets.js";
export type { BashExecution, Block, Body, Entry, LabelKind, Message, Role, Writer } from "./entries.js";
export {
  Aborted,
  AlreadyExists,
  Cancelled,
  DataLoss,
  DeadlineExceeded,
  FailedPrecondition,
  type FieldViolation,
  Internal,
  InvalidArgument,
  MeshError,
  NotFound,
  PermissionDenied,
  type Reason,
  ResourceExhausted,
  ResultTimeout,
  RunFailed,
  type Status,
  Unauthenticated,
  Unavailable,
  Unimplemented,
} from "./errors.js";
export type { DownloadOptions, DownloadUrl, Files, StoredUpload } from "./files.js";
export type { LiveEvent, LiveOptions } from "./live.js";
export type { Mesh, MeshOptions, SessionsOptions, SpawnOptions } from "./mesh.js";
export type { Model, Models, ProviderKind } from "./models.js";
export type {
  Operation,
  OperationRequest,
  OperationResponse,
  Operations,
  OperationView,
  RecountCounts,
  TierAction,
  TierCounts,
  TenantDeleted,
  UnknownMessage,
  WaitOptions,
} from "./operations.js";
export type {
  DeliveryDecision,
  FailurePolicy,
  Grant,
  HookKind,
  Plugin,
  PluginDeliveriesOptions,
  PluginDelivery,
  PluginProfile,
  Plugins,
  PluginWithSecret,
} from "./plugins.js";
export type { RetryPolicy } from "./retry.js";
export type {
  CatchUpPolicy,
  FiringOutcome,
  FiringsOptions,
  OverlapPolicy,
  Schedule,
  ScheduleChange,
  ScheduledSpawn,
  ScheduleFiring,
  ScheduleOptions,
  Schedules,
} from "./schedules.js";
export type { EntryKind, SearchHit, SearchOptions, SearchQuery } from "./search.js";
export type { Peer, Services } from "./services.js";
export type { InterruptOptions, OutputsOptions, PublishedFile, RunResult, Session } from "./session.js";
export type { DiffOptions, SessionDiff } from "./session_diff.js";
export type { DayBudget, SpendDimension, Spending, SpendOptions, SpendRow } from "./spending.js";
export type { Tenant, TenantDeletion, TenantState } from "./tenant_views.js";
export type { TenantChange, TenantProfile, Tenants, TenantSettingsInit } from "./tenants.js";
export type { OnProgress } from "./transfers.js";
export type { Token } from "./transport.js";
export type * from "./views.js";
export type {
  LoggedEventType,
  Webhook,
  WebhookAttempt,
  WebhookChange,
  WebhookConditions,
  WebhookDeliveriesOptions,
  WebhookDelivery,
  WebhookDeliveryState,
  WebhookEventType,
  WebhookOptions,
  Webhooks,
  WebhookWithSecret,
} from "./webhooks.js";
