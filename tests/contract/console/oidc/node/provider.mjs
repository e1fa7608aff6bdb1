// An OpenID provider: `node provider.mjs JSON`, with the clients, the tenant of each person, and the port.
import { createServer } from "node:http";
import Provider from "oidc-provider";

const { clients, tenant, port } = JSON.parse(process.argv[2]);
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clients,
  // A challenge is asked for from every client.
  pkce: { required: () => true },
  scopes: ["openid", "profile"],
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  extraTokenClaims: () => ({ tenant, roles: ["user"] }),
  ttl: { AccessToken: 600, IdToken: 600, AuthorizationCode: 60, Grant: 600, Interaction: 600, Session: 600 },
  features: {
    // A request with `resource` gets an access token that is a JWT for it.
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        scope: "openid",
        audience: "spawnmesh",
        accessTokenFormat: "jwt",
        jwt: { sign: { alg: "RS256" } },
      }),
    },
  },
});
createServer(provider.callback()).listen(port, "127.0.0.1", () => console.log("ready"));
