// A real server's reading of streams: `{"streams": [BASE64, ..]}` comes in on standard input, and for
// each of them goes out what node's http server made of it: `[[METHOD, TARGET, BODY IN BASE64], ..]`.
import http from "node:http";
import net from "node:net";

const input = [];
for await (const piece of process.stdin) input.push(piece);
const { streams } = JSON.parse(Buffer.concat(input).toString());

let seen;
const server = http.createServer((request, response) => {
  const body = [];
  request.on("data", (piece) => body.push(piece));
  request.on("error", () => {});
  request.on("end", () => {
    seen.push([request.method, request.url, Buffer.concat(body).toString("base64")]);
    response.end("ok");
  });
});
server.on("clientError", (_, socket) => socket.destroy());
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));

const all = [];
for (const stream of streams) {
  seen = [];
  const socket = net.connect(server.address().port, "127.0.0.1");
  const closed = new Promise((resolve) => socket.on("close", resolve));
  socket.on("error", () => {});
  socket.resume();
  socket.end(Buffer.from(stream, "base64"));
  await closed;
  all.push(seen);
}
process.stdout.write(JSON.stringify(all));
process.exit(0);
