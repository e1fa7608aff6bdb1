// The services of a mesh, and the clock of the waits between calls.

import type { Clock } from "./retry.js";
import type { Services } from "./services.js";

/** What the objects of a mesh, such as its sessions, call it with. */
export interface Connection {
  readonly services: Services;
  readonly clock: Clock;
}
