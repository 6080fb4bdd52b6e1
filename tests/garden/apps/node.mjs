// The origin with Node's own HTTP server, and with ws for WebSockets: node.mjs PORT.
import { createHash } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { WebSocketServer } from 'ws';

const server = createServer((request, response) => {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    const body = Buffer.concat(parts);
    const id = request.headers['x-name'] ?? '';
    const sha256 = createHash('sha256').update(body).digest('hex');
    const told = JSON.stringify({ id, method: request.method, bytes: body.length, sha256 });
    appendFileSync(process.env.GARDEN_LOG, `${told}\n`);
    const path = new URL(request.url, 'http://a').pathname;
    response.setHeader('X-Name', id);
    if (path.endsWith('/none')) return response.writeHead(204).end();
    const large = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
    const isLarge = path.endsWith('/large');
    const data = isLarge ? Buffer.concat(Array(4096).fill(large)) : Buffer.from(told);
    if (path.endsWith('/chunked')) {
      response.write(data.subarray(0, 10));
      return response.end(data.subarray(10));
    }
    response.setHeader('Content-Length', data.length);
    return response.end(data);
  });
});
server.keepAliveTimeout = 2000;
const sockets = new WebSocketServer({ server });
sockets.on('connection', (socket) => {
  socket.on('message', (data, isBinary) => socket.send(data, { binary: isBinary }));
});
server.listen(Number(process.argv[2]), '127.0.0.1');
