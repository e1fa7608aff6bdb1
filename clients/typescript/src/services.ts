// The generated clients of all services that a client of a tenant or an operator calls.

import type { DescService } from "@bufbuild/protobuf";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { AttachmentBlobService } from "./gen/spawnmesh/attachment_blob/v1/attachment_blob_service_pb.js";
import { HookService } from "./gen/spawnmesh/hook/v1/hook_service_pb.js";
import { WebhookService } from "./gen/spawnmesh/hook/v1/webhook_service_pb.js";
import { ModelRouterService } from "./gen/spawnmesh/model_router/v1/model_router_service_pb.js";
import { OperationService } from "./gen/spawnmesh/operations/v1/operation_service_pb.js";
import { ApprovalService } from "./gen/spawnmesh/session/v1/approval_service_pb.js";
import { BudgetService } from "./gen/spawnmesh/session/v1/budget_service_pb.js";
import { ScheduleService } from "./gen/spawnmesh/session/v1/schedule_service_pb.js";
import { SessionService } from "./gen/spawnmesh/session/v1/session_service_pb.js";
import { TenantService } from "./gen/spawnmesh/session/v1/tenant_service_pb.js";
import { TokenService } from "./gen/spawnmesh/session/v1/token_service_pb.js";
import { ActivityService } from "./gen/spawnmesh/transcript/v1/activity_service_pb.js";
import { ArchiveService } from "./gen/spawnmesh/transcript/v1/archive_service_pb.js";
import { CompactionService } from "./gen/spawnmesh/transcript/v1/compaction_service_pb.js";
import { FileService } from "./gen/spawnmesh/transcript/v1/file_service_pb.js";
import { IntegrityService } from "./gen/spawnmesh/transcript/v1/integrity_service_pb.js";
import { SearchService } from "./gen/spawnmesh/transcript/v1/search_service_pb.js";
import { StorageService } from "./gen/spawnmesh/transcript/v1/storage_service_pb.js";
import { TranscriptService } from "./gen/spawnmesh/transcript/v1/transcript_service_pb.js";

/** The processes of a mesh that clients call. */
export const PEERS = ["session", "transcript", "attachment-blob", "model-router", "hook"] as const;

export type Peer = (typeof PEERS)[number];

/**
 * The generated clients. They add the token, type the errors and repeat what may be repeated. Their
 * requests and responses are messages of the contracts.
 */
export class Services {
  readonly #transportOf: (peer: Peer) => Transport;

  constructor(transportOf: (peer: Peer) => Transport) {
    this.#transportOf = transportOf;
  }

  /** Return a client for any service of the contracts, such as the AuditService of `transcript`. */
  client<S extends DescService>(service: S, peer: Peer): Client<S> {
    return createClient(service, this.#transportOf(peer));
  }

  get session(): Client<typeof SessionService> {
    return this.client(SessionService, "session");
  }
  get tenant(): Client<typeof TenantService> {
    return this.client(TenantService, "session");
  }
  get token(): Client<typeof TokenService> {
    return this.client(TokenService, "session");
  }
  get approval(): Client<typeof ApprovalService> {
    return this.client(ApprovalService, "session");
  }
  get budget(): Client<typeof BudgetService> {
    return this.client(BudgetService, "session");
  }
  get schedule(): Client<typeof ScheduleService> {
    return this.client(ScheduleService, "session");
  }
  get transcript(): Client<typeof TranscriptService> {
    return this.client(TranscriptService, "transcript");
  }
  get activity(): Client<typeof ActivityService> {
    return this.client(ActivityService, "transcript");
  }
  /** The operations of `transcript`: `TierTranscript` and `RecountTranscript` start them. */
  get operation(): Client<typeof OperationService> {
    return this.client(OperationService, "transcript");
  }
  get archive(): Client<typeof ArchiveService> {
    return this.client(ArchiveService, "transcript");
  }
  get compaction(): Client<typeof CompactionService> {
    return this.client(CompactionService, "transcript");
  }
  get file(): Client<typeof FileService> {
    return this.client(FileService, "transcript");
  }
  get integrity(): Client<typeof IntegrityService> {
    return this.client(IntegrityService, "transcript");
  }
  get search(): Client<typeof SearchService> {
    return this.client(SearchService, "transcript");
  }
  get storage(): Client<typeof StorageService> {
    return this.client(StorageService, "transcript");
  }
  get attachmentBlob(): Client<typeof AttachmentBlobService> {
    return this.client(AttachmentBlobService, "attachment-blob");
  }
  get modelRouter(): Client<typeof ModelRouterService> {
    return this.client(ModelRouterService, "model-router");
  }
  get hook(): Client<typeof HookService> {
    return this.client(HookService, "hook");
  }
  get webhook(): Client<typeof WebhookService> {
    return this.client(WebhookService, "hook");
  }
}
