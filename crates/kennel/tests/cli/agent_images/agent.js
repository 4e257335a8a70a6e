#!/usr/bin/env node
// An agent that says its version, whether what it wrote to its home directory is still there, and whether it can change its own
// program.
const { accessSync, constants, existsSync, mkdirSync, writeFileSync } = require("node:fs");
const { homedir } = require("node:os");
const { join } = require("node:path");

const say = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);

function kept(...path) {
  const file = join(homedir(), ...path);
  const was = existsSync(file);
  mkdirSync(join(file, ".."), { recursive: true });
  writeFileSync(file, "token");
  return was ? "kept" : "none";
}

function program() {
  try {
    accessSync(join(__dirname, "package.json"), constants.W_OK);
    return "writable";
  } catch (error) {
    return error.code === "EROFS" ? "read-only" : error.code;
  }
}

const replies = {
  initialize: () => ({ protocolVersion: 1 }),
  "session/new": () => ({ sessionId: "s" }),
  "session/prompt": () => {
    const { version } = require("./package.json");
    const text = `version ${version}, login: ${kept(".mine", "login")}, file: ${kept(".config", "mine.json")}, program: ${program()}`;
    const update = { sessionUpdate: "agent_message_chunk", content: { type: "text", text } };
    say({ method: "session/update", params: { sessionId: "s", update } });
    return { stopReason: "end_turn" };
  },
};

require("node:readline")
  .createInterface({ input: process.stdin })
  .on("line", (line) => {
    const { id, method } = JSON.parse(line);
    if (id !== undefined && replies[method]) say({ id, result: replies[method]() });
  });
