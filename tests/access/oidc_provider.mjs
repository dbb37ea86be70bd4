// A certified OpenID Connect provider for tests: node oidc_provider.mjs CONFIG.json
// CONFIG: {port, client_id, client_secret, redirect_uris, post_logout_redirect_uris, accounts: {login: claims}}.
// The file is read again for each sign-in, so that a test can change the groups of an account.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [config_path, modules] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${modules}/`));
const { default: Provider } = await import(pathToFileURL(require.resolve("oidc-provider")));
const read = () => JSON.parse(readFileSync(config_path, "utf8"));
const config = read();

const provider = new Provider(`http://127.0.0.1:${config.port}`, {
  clients: [
    {
      client_id: config.client_id,
      client_secret: config.client_secret,
      redirect_uris: config.redirect_uris,
      post_logout_redirect_uris: config.post_logout_redirect_uris,
    },
  ],
  claims: { openid: ["sub"], profile: ["name"], email: ["email", "email_verified"], groups: ["groups"] },
  scopes: ["openid", "profile", "email", "groups"],
  pkce: { required: () => true },
  conformIdTokenClaims: config.thin_id_token,
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...(read().accounts[id] ?? {}) }) }),
  cookies: { keys: ["a-key-of-the-tests"] },
});
provider.listen(config.port, "127.0.0.1", () => console.log("ready"));
