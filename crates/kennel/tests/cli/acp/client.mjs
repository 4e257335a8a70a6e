// A client on @agentclientprotocol/sdk. Runs a command as its agent, sends one prompt, and prints what happened as JSON.
//
//   node client.mjs DIRECTORY PROMPT DECISION -- COMMAND…      DECISION: allow, or cancel at the first request for permission
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const [cwd, text, decision, , command, ...args] = process.argv.slice(2);
const child = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
const { agent, client } = acp.methods;
let agentSide;
const seen = { permissions: 0, files: 0, terminals: 0, updates: {} };

const app = acp
  .client({ name: "test" })
  .onRequest(client.session.requestPermission, async ({ params }) => {
    seen.permissions += 1;
    if (decision === "cancel") {
      await agentSide.notify(agent.session.cancel, { sessionId: params.sessionId });
      return { outcome: { outcome: "cancelled" } };
    }
    const option = params.options.find((option) => option.kind === "allow_once");
    return { outcome: { outcome: "selected", optionId: option.optionId } };
  })
  .onRequest(client.fs.readTextFile, () => ((seen.files += 1), { content: "from the client" }))
  .onRequest(client.fs.writeTextFile, () => ((seen.files += 1), {}))
  .onNotification(client.session.update, ({ params }) => {
    const kind = params.update.sessionUpdate;
    seen.updates[kind] = (seen.updates[kind] ?? 0) + 1;
  });

await app.connectWith(stream, async (connection) => {
  agentSide = connection;
  const begun = await connection.request(agent.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientInfo: { name: "test", version: "0" },
    clientCapabilities: { fs: { readTextFile: false, writeTextFile: false } },
  });
  const { sessionId } = await connection.request(agent.session.new, { cwd, mcpServers: [] });
  const { stopReason } = await connection.request(agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
  console.log(JSON.stringify({ protocol: begun.protocolVersion, stopReason, ...seen }));
});
child.stdin.end();
await new Promise((done) => child.on("exit", done));
process.exit(0);
