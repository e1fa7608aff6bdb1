// Watches one session to its end, and prints each event as a line of JSON.
import { connect } from "@spawnmesh/client";

const { SESSION, TOKEN, SESSION_ID } = process.env as Record<string, string>;
const mesh = connect({ targets: { session: SESSION! }, token: TOKEN! });
const session = await mesh.session(SESSION_ID!);
for await (const { number, type, runState } of session.events()) {
  console.log(JSON.stringify([number, type, runState ?? ""]));
}
