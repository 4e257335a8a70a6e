// A model server for tests, on loopback. It speaks Anthropic's Messages API, and plays one script per conversation: it calls the
// agent's tool that writes a file, then the one that runs a command, and then says DONE.
//
//   node model.mjs PORT FILE COMMAND READY     creates the file READY when it listens
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";

const [port, file, command, ready] = process.argv.slice(2);
const usage = { input_tokens: 1, output_tokens: 1 };

/** The number of tool results since the last message of the user. */
function results(messages) {
  let count = 0;
  for (const { role, content } of messages) {
    const parts = Array.isArray(content) ? content.filter((part) => part.type === "tool_result") : [];
    if (role === "user") count = parts.length === 0 ? 0 : count + parts.length;
  }
  return count;
}

/** What the model says next, as one content block. */
function next({ messages, tools = [] }) {
  const named = (name) => tools.find((tool) => tool.name.split("__").at(-1) === name);
  const call = (tool, input) => ({ type: "tool_use", id: `toolu_${Date.now()}`, name: tool.name, input });
  const [write, shell] = [named("Write"), named("Bash")];
  const done = results(messages);
  if (write && done === 0) return call(write, { file_path: file, content: "hello\n" });
  if (shell && done === 1) return call(shell, { command, description: "run a command", timeout: 60_000 });
  return { type: "text", text: "DONE" };
}

function respond(request, response) {
  const block = next(request);
  const stop = block.type === "tool_use" ? "tool_use" : "end_turn";
  const message = { id: "msg_1", type: "message", role: "assistant", model: request.model, content: [block], stop_reason: stop, usage };
  if (!request.stream) {
    response.writeHead(200, { "content-type": "application/json" });
    return response.end(JSON.stringify(message));
  }
  const [empty, delta] =
    block.type === "text"
      ? [{ ...block, text: "" }, { type: "text_delta", text: block.text }]
      : [{ ...block, input: {} }, { type: "input_json_delta", partial_json: JSON.stringify(block.input) }];
  const events = [
    { type: "message_start", message: { ...message, content: [], stop_reason: null } },
    { type: "content_block_start", index: 0, content_block: empty },
    { type: "content_block_delta", index: 0, delta },
    { type: "content_block_stop", index: 0 },
    { type: "message_delta", delta: { stop_reason: stop }, usage },
    { type: "message_stop" },
  ];
  response.writeHead(200, { "content-type": "text/event-stream" });
  response.end(events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join(""));
}

const server = createServer((incoming, response) => {
  let body = "";
  incoming.on("data", (bytes) => (body += bytes));
  incoming.on("end", () => {
    if (incoming.method === "POST" && incoming.url.split("?")[0].endsWith("/messages")) return respond(JSON.parse(body), response);
    response.writeHead(incoming.method === "HEAD" ? 200 : 404, { "content-type": "application/json" });
    response.end("{}");
  });
});
server.listen(Number(port), "127.0.0.1", () => writeFileSync(ready, ""));
