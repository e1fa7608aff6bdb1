// A tenant as the mesh has it.

import {
  type Tenant as WireTenant,
  TenantState as WireState,
} from "./gen/spawnmesh/session/v1/tenant_pb.js";
import { dateOf, type NameIn, nameOf, present } from "./names.js";

export type TenantState = NameIn<typeof WireState>;

/** The deletion of a tenant, and what it has removed so far. */
export interface TenantDeletion {
  readonly requestTime: Date | undefined;
  readonly endTime: Date | undefined;
  readonly killedRuns: number;
  readonly deletedSessions: number;
  readonly deletedTranscripts: number;
  readonly deletedObjects: number;
  /** What stopped the newest attempt. The mesh tries again. */
  readonly stalledBy: string | undefined;
}

/** A tenant. Of one that is deleted, only the id and the deletion are known. */
export interface Tenant {
  readonly tenantId: string;
  readonly displayName: string;
  readonly state: TenantState;
  /** One more with each change of the settings. */
  readonly settingsVersion: number;
  readonly createTime: Date | undefined;
  readonly deletion: TenantDeletion | undefined;
  readonly etag: string;
}

export function tenantView(tenant: WireTenant | undefined): Tenant {
  if (tenant === undefined) throw new TypeError("the mesh answered without a tenant");
  const { deletion } = tenant;
  return {
    tenantId: tenant.tenantId,
    displayName: tenant.displayName,
    state: nameOf(WireState, tenant.state),
    settingsVersion: Number(tenant.settingsVersion),
    createTime: dateOf(tenant.createTime),
    deletion: deletion && {
      requestTime: dateOf(deletion.requestTime),
      endTime: dateOf(deletion.endTime),
      killedRuns: Number(deletion.killedRunCount),
      deletedSessions: Number(deletion.deletedSessionCount),
      deletedTranscripts: Number(deletion.deletedTranscriptCount),
      deletedObjects: Number(deletion.deletedObjectCount),
      stalledBy: present(deletion.stalledBy),
    },
    etag: tenant.etag,
  };
}
