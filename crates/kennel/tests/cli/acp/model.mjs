// A model server for tests, on loopback. It plays one script per conversation: it calls the agent's tool that writes a file, then
// the one that runs a command, and then says DONE. It speaks Anthropic's Messages, OpenAI's Responses, and Gemini's
// generateContent.
//
//   node model.mjs PORT FILE COMMAND READY     creates the file READY when it listens
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";

const [port, file, command, ready] = process.argv.slice(2);
const TEXT = "hello\n";
let calls = 0;

/** The value of a tool's parameter. Others that are required get any value of their type. */
function value(name, { type, enum: choices }) {
  if (["file_path", "path", "absolute_path"].includes(name)) return file;
  if (name === "content") return TEXT;
  if (["command", "cmd"].includes(name)) return type === "array" ? ["bash", "-c", command] : command;
  return choices?.[0] ?? { boolean: false, integer: 60_000, number: 60_000, array: [], object: {} }[type] ?? "test";
}

/** What the model says next: `{ tool, input }`, or `{ text }`. `tools` have a name and a schema. */
function next(tools, done) {
  const named = (...names) => tools.find((tool) => names.includes(tool.name?.split("__").at(-1)));
  const write = named("Write", "write_file");
  const shell = named("Bash", "run_shell_command", "exec_command", "shell_command", "shell");
  // An agent without a tool for files writes them with commands.
  const script = write || done > 0 ? command : `printf '${TEXT.replace("\n", "\\n")}' > '${file}'`;
  const tool = [write ?? shell, shell][done];
  if (!tool) return { text: "DONE" };
  const { properties = {}, required = [] } = tool.schema ?? {};
  const known = (name) => required.includes(name) || ["command", "cmd"].includes(name);
  const names = Object.keys(properties).filter(known);
  const input = Object.fromEntries(names.map((name) => [name, value(name, properties[name])]));
  for (const name of ["command", "cmd"]) {
    if (name in input) input[name] = Array.isArray(input[name]) ? ["bash", "-c", script] : script;
  }
  return { tool: tool.name, input };
}

/** The number of tool results since the last message of the user. */
function since(items, isUser, results) {
  return items.reduce((count, item) => (isUser(item) ? 0 : count + results(item)), 0);
}

const streams = {
  anthropic({ messages, tools = [], model }) {
    const results = ({ content }) => (Array.isArray(content) ? content.filter((part) => part.type === "tool_result").length : 0);
    const done = since(messages, (message) => message.role === "user" && results(message) === 0, results);
    const said = next(tools.map(({ name, input_schema }) => ({ name, schema: input_schema })), done);
    const usage = { input_tokens: 1, output_tokens: 1 };
    const stop = said.tool ? "tool_use" : "end_turn";
    const [empty, full, delta] = said.tool
      ? [{ input: {} }, { input: said.input }, { type: "input_json_delta", partial_json: JSON.stringify(said.input) }]
      : [{ text: "" }, { text: said.text }, { type: "text_delta", text: said.text }];
    const block = said.tool ? { type: "tool_use", id: `toolu_${++calls}`, name: said.tool } : { type: "text" };
    const message = { id: `msg_${calls}`, type: "message", role: "assistant", model, content: [{ ...block, ...full }], stop_reason: stop, usage };
    const events = [
      { type: "message_start", message: { ...message, content: [], stop_reason: null } },
      { type: "content_block_start", index: 0, content_block: { ...block, ...empty } },
      { type: "content_block_delta", index: 0, delta },
      { type: "content_block_stop", index: 0 },
      { type: "message_delta", delta: { stop_reason: stop }, usage },
      { type: "message_stop" },
    ];
    return [message, events];
  },

  responses({ input, tools = [], model }) {
    const items = Array.isArray(input) ? input : [];
    const isUser = (item) => (item.type ?? "message") === "message" && item.role === "user";
    const done = since(items, isUser, (item) => (item.type?.endsWith("_call_output") ? 1 : 0));
    const said = next(tools.map(({ name, parameters }) => ({ name, schema: parameters })), done);
    const id = `item_${++calls}`;
    const item = said.tool
      ? { id, type: "function_call", call_id: `call_${calls}`, name: said.tool, arguments: JSON.stringify(said.input), status: "completed" }
      : { id, type: "message", role: "assistant", status: "completed", content: [{ type: "output_text", text: said.text, annotations: [] }] };
    const usage = { input_tokens: 1, output_tokens: 1, total_tokens: 2, input_tokens_details: { cached_tokens: 0 }, output_tokens_details: { reasoning_tokens: 0 } };
    const response = { id: `resp_${calls}`, object: "response", status: "completed", model, output: [item], usage };
    const events = [
      { type: "response.created", response: { ...response, status: "in_progress", output: [] } },
      { type: "response.output_item.added", output_index: 0, item },
      { type: "response.output_item.done", output_index: 0, item },
      { type: "response.completed", response },
    ];
    return [response, events];
  },

  gemini({ contents, tools = [], generationConfig }) {
    const results = ({ parts }) => parts.filter((part) => part.functionResponse).length;
    const done = since(contents, (content) => content.role === "user" && results(content) === 0, results);
    const declared = tools.flatMap((tool) => tool.functionDeclarations ?? []);
    const said = next(declared.map((tool) => ({ name: tool.name, schema: tool.parametersJsonSchema ?? tool.parameters })), done);
    // The agent first asks which model should reply.
    const router = { complexity_reasoning: "test", complexity_score: 1, reasoning: "test", model_choice: "flash" };
    const text = generationConfig?.responseMimeType?.includes("json") ? JSON.stringify(router) : said.text;
    const part = text === undefined ? { functionCall: { name: said.tool, args: said.input } } : { text };
    const candidate = { content: { role: "model", parts: [part] }, finishReason: "STOP", index: 0 };
    const usageMetadata = { promptTokenCount: 1, candidatesTokenCount: 1, totalTokenCount: 2 };
    const reply = { candidates: [candidate], modelVersion: "test", usageMetadata };
    return [reply, [reply]];
  },
};

/** Returns the API of a request, and whether it wants a stream. */
function api(path, request) {
  if (path.endsWith("/messages")) return [streams.anthropic, request.stream];
  if (path.endsWith("/responses")) return [streams.responses, request.stream];
  if (path.endsWith(":streamGenerateContent")) return [streams.gemini, true];
  if (path.endsWith(":generateContent")) return [streams.gemini, false];
  return [];
}

function respond(path, request, response) {
  const [speak, stream] = api(path, request);
  if (!speak) {
    response.writeHead(404, { "content-type": "application/json" });
    return response.end("{}");
  }
  const [whole, events] = speak(request);
  if (!stream) {
    response.writeHead(200, { "content-type": "application/json" });
    return response.end(JSON.stringify(whole));
  }
  response.writeHead(200, { "content-type": "text/event-stream" });
  const lines = (event) => `${event.type ? `event: ${event.type}\n` : ""}data: ${JSON.stringify(event)}\n\n`;
  response.end(events.map(lines).join(""));
}

const server = createServer((incoming, response) => {
  let body = "";
  incoming.on("data", (bytes) => (body += bytes));
  incoming.on("end", () => {
    if (incoming.method === "POST") return respond(incoming.url.split("?")[0], JSON.parse(body || "{}"), response);
    response.writeHead(incoming.method === "HEAD" ? 200 : 404, { "content-type": "application/json" });
    response.end("{}");
  });
});
server.listen(Number(port), "127.0.0.1", () => writeFileSync(ready, ""));
