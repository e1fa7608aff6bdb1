// The tenants of a mesh, for its operators.

import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Connection } from "./connection.js";
import type { TenantSettings, TenantSettingsSchema } from "./gen/spawnmesh/session/v1/tenant_pb.js";
import { Operation, type TenantDeleted } from "./operations.js";
import { newRequestId } from "./request_id.js";
import { type Tenant, tenantView } from "./tenant_views.js";

const PAGE_SIZE = 500;
const CHANGE_MS = 60_000;

/** Settings as a message of the contract. What is left out gets the default of the mesh. */
export type TenantSettingsInit = MessageInitShape<typeof TenantSettingsSchema>;

/** The name and the settings of a tenant. */
export interface TenantProfile {
  readonly displayName?: string;
  readonly settings?: TenantSettingsInit;
}

/** A change of a tenant, with the etag on which it is based. Left out: change whatever there is. */
export interface TenantChange extends TenantProfile {
  readonly etag?: string;
}

/** Create, read, change and delete tenants, with the token of an operator of the mesh. */
export class Tenants {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /**
   * Create a tenant, or return the one that has this name and these settings. Throws ALREADY_EXISTS if it
   * has others, and CONFLICT while it is being deleted.
   */
  async create(tenantId: string, profile: TenantProfile = {}): Promise<Tenant> {
    const { displayName = "", settings } = profile;
    const request = { tenantId, displayName, ...(settings && { settings }) };
    return tenantView((await this.#wire.createTenant(request, { timeoutMs: CHANGE_MS })).tenant);
  }

  /** Return one tenant, also a deleted one. Throws NotFound. */
  async get(tenantId: string): Promise<Tenant> {
    return tenantView((await this.#wire.getTenant({ tenantId })).tenant);
  }

  /** Return the settings of a tenant as a message of the contract. Throws NotFound. */
  async settings(tenantId: string): Promise<TenantSettings | undefined> {
    return (await this.#wire.getTenant({ tenantId })).tenant?.settings;
  }

  /** Yield the tenants that are not deleted, by their ids. Pages are fetched as needed. */
  async *list(): AsyncGenerator<Tenant, void, undefined> {
    let pageToken = "";
    do {
      const page = await this.#wire.listTenants({ pageSize: PAGE_SIZE, pageToken });
      yield* page.tenants.map(tenantView);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /**
   * Change these fields of a tenant, such as `settings.max_spawn_depth`, to the values in `change`. Without
   * fields, change those that are given. Throws UNKNOWN_TENANT, INVALID_REQUEST for a field that cannot
   * be changed, and ETAG_DIFFERS if the tenant has another etag.
   */
  async update(tenantId: string, change: TenantChange, fields: readonly string[] = []): Promise<Tenant> {
    const { displayName = "", settings, etag = "" } = change;
    const tenant = { tenantId, displayName, etag, ...(settings && { settings }) };
    const request = { tenant, updateMask: { paths: [...fields] } };
    return tenantView((await this.#wire.updateTenant(request, { timeoutMs: CHANGE_MS })).tenant);
  }

  /**
   * Start the operation that deletes a tenant with all its data. Its `result` waits until nothing is left.
   * It cannot be cancelled. The same `requestId` returns the same operation. Throws NotFound.
   */
  async delete(tenantId: string, options: { requestId?: string } = {}): Promise<Operation<TenantDeleted>> {
    const { requestId = newRequestId() } = options;
    const started = await this.#wire.deleteTenant({ tenantId, requestId });
    return new Operation(this.#connection, started);
  }

  get #wire() {
    return this.#connection.services.tenant;
  }
}
