// A client of `kennel.v1` in JavaScript, with nothing but what browsers have: client.js ADDRESS TOKEN SANDBOX

const [address, token, sandbox] = process.argv.slice(2);
const path = `/v1/sandboxes/${sandbox}/stream`;

// A browser cannot send a token with a WebSocket, so it gets a ticket first.
async function open(first) {
  const response = await fetch(`http://${address}/v1/tickets`, {
    method: "POST",
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    body: JSON.stringify({ operation: "streamCommand", path }),
  });
  const ticket = await response.json();
  const socket = new WebSocket(`ws://${address}${ticket.path}`, "kennel.v1");
  socket.binaryType = "arraybuffer";
  const arrived = [];
  let wake = () => {};
  const put = (item) => { arrived.push(item); wake(); };
  socket.onmessage = (event) => put(event.data);
  socket.onclose = (event) => put({ closed: event.code });
  await new Promise((resolve, reject) => { socket.onopen = resolve; socket.onerror = reject; });
  const say = (message) => socket.send(JSON.stringify(message));
  const next = async () => {
    while (arrived.length === 0) await new Promise((resolve) => { wake = resolve; });
    const item = arrived.shift();
    if (typeof item === "string") return JSON.parse(item);
    if (!(item instanceof ArrayBuffer)) return item;
    const offset = Number(new DataView(item).getBigUint64(1));
    const payload = new Uint8Array(item, 9);
    const channel = ["stdin", "stdout", "stderr"][new DataView(item).getUint8(0)];
    say({ type: "ack", channel, offset: offset + payload.length });
    return { text: new TextDecoder().decode(payload) };
  };
  const write = (offset, text) => {
    const bytes = new TextEncoder().encode(text);
    const frame = new Uint8Array(9 + bytes.length);
    new DataView(frame.buffer).setBigUint64(1, BigInt(offset));
    frame.set(bytes, 9);
    socket.send(frame);
  };
  const read = async (count) => {
    let seen = "";
    while (seen.length < count) seen += (await next()).text ?? "";
    return seen;
  };
  say(first);
  return { socket, next, say, write, read, first: await next() };
}

let command = await open({ type: "start", shell: "while read line; do echo got $line; done; exit 9", stdin: true });
const id = command.first.process;
command.write(0, "one\n");
process.stdout.write(await command.read(8));
command.socket.close();

command = await open({ type: "attach", process: id, stdout: 8, write: true });
if (command.first.stdinTaken !== 4) throw new Error(JSON.stringify(command.first));
command.write(4, "two\n");
process.stdout.write(await command.read(8));
command.say({ type: "eof", offset: 8 });
let message;
do message = await command.next(); while (message.type !== "exit");
console.log("exit", message.exitCode);
process.exit(0);
