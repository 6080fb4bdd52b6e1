// One client library of Node.js: client.mjs NAME. Reads requests as JSON, writes the answers.
import { createHash, randomBytes } from 'node:crypto';
import { Agent } from 'node:http';
import { Readable } from 'node:stream';
import axios from 'axios';
import got from 'got';
import { request as undici } from 'undici';
import WebSocket from 'ws';

const sha256 = (data) => createHash('sha256').update(data).digest('hex');
const agent = new Agent({ keepAlive: true, maxSockets: 1 });

function* parts(body) {
  for (let at = 0; at < body.length; at += 10000) yield body.subarray(at, at + 10000);
}

const clients = {
  async undici({ url, method, headers, chunked }, body) {
    const data = chunked ? Readable.from(parts(body)) : body.length ? body : undefined;
    const said = await undici(url, { method, headers, body: data });
    const content = Buffer.from(await said.body.arrayBuffer());
    return { status: said.statusCode, headers: said.headers, content };
  },
  async got({ url, method, headers, chunked }, body) {
    const data = chunked ? Readable.from(parts(body)) : body.length ? body : undefined;
    const said = await got(url, {
      method, headers, body: data, agent: { http: agent }, retry: { limit: 0 },
      throwHttpErrors: false, responseType: 'buffer', allowGetBody: true,
    });
    return { status: said.statusCode, headers: said.headers, content: said.body };
  },
  async axios({ url, method, headers, chunked }, body) {
    const data = chunked ? Readable.from(parts(body)) : body.length ? body : undefined;
    const said = await axios.request({
      url, method, headers, data, httpAgent: agent, responseType: 'arraybuffer', proxy: false,
      validateStatus: () => true, maxRedirects: 0, maxBodyLength: Infinity,
    });
    return { status: said.status, headers: said.headers, content: said.data };
  },
  ws({ url, headers, id }, body) {
    return new Promise((resolve, reject) => {
      const socket = new WebSocket(url.replace('http', 'ws'), { headers });
      socket.on('open', () => socket.send(body));
      socket.on('error', reject);
      socket.on('message', (content) => {
        socket.close();
        resolve({ status: 101, headers: { 'x-name': id }, content });
      });
    });
  },
};

const input = [];
for await (const part of process.stdin) input.push(part);
const answers = [];
for (const request of JSON.parse(Buffer.concat(input))) {
  const body = randomBytes(request.bytes);
  const { status, headers, content } = await clients[process.argv[2]](request, body);
  answers.push({
    id: request.id, status, answered: headers['x-name'] ?? '', sent: sha256(body),
    sha256: sha256(content), text: content.subarray(0, 300).toString('latin1'),
    length: content.length,
  });
}
console.log(JSON.stringify(answers));
process.exit(0);
