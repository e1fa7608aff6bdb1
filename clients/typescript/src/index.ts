// The entry point for Node.

export * from "./api.js";
export { type ConnectOptions, connect, type TlsOptions } from "./connect.js";
