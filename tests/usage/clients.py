"""The clients that people use, as they are: openai, anthropic, google-genai, boto3 and litellm.
Whole answers, streams, tools, errors, retries, and streams that are closed early."""

import asyncio
import json
import logging
import os
import warnings

import dialects
from calls import Failed, check, on_both_stores, until
from dialects import DIALECTS, Tokens, text
from exact import CONFIG, LIMITS, units
from model import Plan

# No client may ask for anything outside.
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_TELEMETRY="False",
                  AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b",
                  AWS_EC2_METADATA_DISABLED="true")
warnings.simplefilter("ignore")

import anthropic  # noqa: E402
import boto3  # noqa: E402
import botocore.config  # noqa: E402
import litellm  # noqa: E402
import openai  # noqa: E402
from google import genai  # noqa: E402

OPENAI, RESPONSES, ANTHROPIC, GEMINI, _, CONVERSE, INVOKE, *_ = DIALECTS
SAID = Tokens(1200, 345, 200)
MESSAGES = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
TOOL_ANTHROPIC = {"name": "look", "input_schema": {"type": "object"}}
# What a call reserves: more than its body's bytes cost, so that an estimate shows.
MOST = 7000


def named_sse(events):
    """Events with the names of their types, as clients want them."""
    def name(event):
        return f"event: {json.loads(event)['type']}\n" if '"type"' in event[:40] else ""
    return [f"{name(event)}data: {event}\n\n".encode() for event in events]


class Check:
    """One server, and calls whose keys are their names."""

    def __init__(self, server):
        self.server, self.model, self.keys = server, server.fleet.model, 0

    def plan(self, dialect, streamed, tokens=SAID, gap=0.0, **options):
        """The headers of a call, its key and its plan."""
        if streamed and dialect.kind == "text/event-stream":
            pieces = named_sse(dialect.stream(tokens))
        elif streamed:
            pieces = [dialects.framed(dialect, [event]) for event in dialect.stream(tokens)]
        else:
            pieces = [dialect.whole(tokens)[0].encode()]
        if gap:
            pieces = [one for piece in pieces for one in (piece, gap)]
        kind = dialect.kind if streamed else "application/json"
        return self.of_plan(Plan(pieces, kind, **options))

    def of_plan(self, plan):
        headers, plan = self.model.plan(plan)
        self.keys += 1
        key = f"client-{self.keys}"
        return {**headers, "x-key": key}, key, plan

    def charged(self, what, dialect, key, tokens=SAID, times=1):
        expected = [times * one for one in units(dialect, tokens)] if tokens else [0] * len(LIMITS)
        until(f"{self.server.name}: {what}", expected, lambda: self.server.counts(LIMITS, key))

    def openai(self, **options):
        return openai.OpenAI(base_url=f"{self.server.url}/openai/v1", api_key="sk", max_retries=0,
                             **options)

    def anthropic(self):
        return anthropic.Anthropic(base_url=f"{self.server.url}/anthropic", api_key="sk",
                                   max_retries=0)


def with_openai(on):
    client = on.openai()
    asked = dict(model="gpt-5-mini", messages=MESSAGES, max_completion_tokens=MOST)
    ask = client.chat.completions.create
    headers, key, _ = on.plan(OPENAI, False)
    answer = ask(**asked, tools=[TOOL], extra_headers=headers)
    check("openai: the client reads the usage", 345, answer.usage.completion_tokens)
    on.charged("openai: a whole answer with a tool call", OPENAI, key)

    headers, key, _ = on.plan(OPENAI, True)
    chunks = list(ask(**asked, stream=True, stream_options={"include_usage": True},
                      extra_headers=headers))
    check("openai: the client reads a stream", 345, chunks[-1].usage.completion_tokens)
    on.charged("openai: a stream", OPENAI, key)

    headers, key, _ = on.plan(RESPONSES, False)
    answer = client.responses.create(model="gpt-5-mini", input="Hello", max_output_tokens=MOST,
                                     extra_headers=headers)
    check("openai: the client reads a response", 345, answer.usage.output_tokens)
    on.charged("openai: a response", RESPONSES, key)
    headers, key, _ = on.plan(RESPONSES, True)
    events = list(client.responses.create(model="gpt-5-mini", input="Hello", stream=True,
                                          max_output_tokens=MOST, extra_headers=headers))
    check("openai: the client reads its events", 345, events[-1].response.usage.output_tokens)
    on.charged("openai: a streamed response", RESPONSES, key)

    vectors = {"object": "list", "model": "gpt-5-embed", "usage": {"prompt_tokens": 9,
               "total_tokens": 9}, "data": [
                   {"object": "embedding", "index": 0, "embedding": [1.0]}]}
    headers, key, _ = on.of_plan(Plan([text(vectors).encode()]))
    client.embeddings.create(model="gpt-5-embed", input="x", encoding_format="float",
                             extra_headers=headers)
    on.charged("openai: embeddings", OPENAI, key, Tokens(9, 0))

    error = {"error": {"message": "no", "type": "server_error", "code": None}}
    failed = Plan([text(error).encode()], status=500)
    good = Plan([OPENAI.whole(SAID)[0].encode()])
    headers, key, _ = on.of_plan([failed, failed, good])
    on.openai().with_options(max_retries=3).chat.completions.create(**asked, extra_headers=headers)
    on.charged("openai: two errors and a retry that the client makes", OPENAI, key)
    for status in (400, 401, 429, 503):
        headers, key, _ = on.of_plan(Plan([text(error).encode()], status=status))
        try:
            ask(**asked, extra_headers=headers)
            raise Failed(f"openai: {status} passed")
        except openai.APIStatusError as found:
            check(f"openai: {status} passes", status, found.status_code)
        on.charged(f"openai: {status} costs nothing", OPENAI, key, None)

    headers, key, plan = on.plan(OPENAI, True, gap=0.05)
    stream = ask(**asked, stream=True, extra_headers=headers)
    next(iter(stream))
    stream.close()
    check("openai: a closed stream is closed upstream", True, plan.left.wait(10))
    line = kept(on, "openai: a closed stream", key)
    check("openai: it is logged as aborted", ("aborted", MOST), (line["outcome"], line["output"]))


def kept(on, what, key):
    """A call whose client has left keeps its reserve, and is logged."""
    path = "/openai/v1/chat/completions"
    aborted = lambda: [line["usage"] for line in on.server.logged(path)
                       if line.get("usage", {}).get("outcome") == "aborted"]
    until(f"{on.server.name}: {what}: has a line in the access log", True, lambda: bool(aborted()))
    line = aborted()[-1]
    until(f"{on.server.name}: {what}: keeps the reserve", line["reserved"],
          lambda: on.server.count("tokens", key))
    return line


async def with_openai_async(on):
    asked = dict(model="gpt-5-mini", messages=MESSAGES, max_tokens=MOST, stream=True)
    client = openai.AsyncOpenAI(base_url=f"{on.server.url}/openai/v1", api_key="sk", max_retries=0)

    async def call():
        headers, key, _ = on.plan(OPENAI, True)
        async for _ in await client.chat.completions.create(**asked, extra_headers=headers):
            pass
        return key

    keys = await asyncio.gather(*(call() for _ in range(50)))
    for key in keys[:5]:
        on.charged("openai, async: one of 50 streams at once", OPENAI, key)
    # A client that closes right behind the usage.
    headers, key, _ = on.plan(OPENAI, True, gap=0.05)
    stream = await client.chat.completions.create(**asked, extra_headers=headers)
    async for chunk in stream:
        if chunk.usage:
            break
    await stream.close()
    on.charged("openai, async: closed right behind the usage", OPENAI, key)
    await client.close()


def with_anthropic(on):
    said = Tokens(1200, 345, 200, 100)
    asked = dict(model="claude-5", messages=MESSAGES, max_tokens=MOST, tools=[TOOL_ANTHROPIC])
    client = on.anthropic()
    headers, key, _ = on.plan(ANTHROPIC, False, said)
    answer = client.messages.create(**asked, extra_headers=headers)
    check("anthropic: the client reads a tool call", "tool_use", answer.content[1].type)
    on.charged("anthropic: a whole answer", ANTHROPIC, key, said)
    headers, key, _ = on.plan(ANTHROPIC, True, said)
    with client.messages.stream(**asked, extra_headers=headers) as stream:
        message = stream.get_final_message()
    check("anthropic: the client reads a stream", 345, message.usage.output_tokens)
    on.charged("anthropic: a stream", ANTHROPIC, key, said)
    headers, key, plan = on.plan(ANTHROPIC, True, said, gap=0.05)
    with client.messages.stream(**asked, extra_headers=headers) as stream:
        next(iter(stream))
    check("anthropic: a stream that is closed early is closed upstream", True, plan.left.wait(10))
    until(f"{on.server.name}: anthropic: and keeps its reserve", MOST,
          lambda: on.server.count("output", key))

    async def streams():
        client = anthropic.AsyncAnthropic(base_url=f"{on.server.url}/anthropic", api_key="sk",
                                          max_retries=0)

        async def call():
            headers, key, _ = on.plan(ANTHROPIC, True, said)
            async with client.messages.stream(**asked, extra_headers=headers) as stream:
                await stream.get_final_message()
            return key

        keys = await asyncio.gather(*(call() for _ in range(30)))
        await client.close()
        return keys

    for key in asyncio.run(streams())[:5]:
        on.charged("anthropic, async: one of 30 streams at once", ANTHROPIC, key, said)


def with_gemini(on):
    def client(headers):
        options = genai.types.HttpOptions(base_url=f"{on.server.url}/gemini", headers=headers)
        return genai.Client(api_key="k", vertexai=False, http_options=options)

    config = genai.types.GenerateContentConfig(
        max_output_tokens=MOST,
        automatic_function_calling=genai.types.AutomaticFunctionCallingConfig(disable=True))
    asked = dict(model="gemini-3", contents="Hello", config=config)
    headers, key, _ = on.plan(GEMINI, False)
    made = client(headers)
    answer = made.models.generate_content(**asked)
    check("gemini: the client reads the usage", 3, answer.usage_metadata.thoughts_token_count)
    on.charged("gemini: a whole answer", GEMINI, key)
    headers, key, _ = on.plan(GEMINI, True)
    made = client(headers)
    events = list(made.models.generate_content_stream(**asked))
    check("gemini: the client reads a stream", 342,
          events[-1].usage_metadata.candidates_token_count)
    on.charged("gemini: a stream", GEMINI, key)


def with_bedrock(on):
    said = Tokens(1200, 345, 200, 100)

    def client(headers):
        made = boto3.client(
            "bedrock-runtime", region_name="us-east-1", endpoint_url=f"{on.server.url}/bedrock",
            config=botocore.config.Config(retries={"max_attempts": 0}))
        add = lambda request, **_: request.headers.update(headers)
        made.meta.events.register("before-send.bedrock-runtime.*", add)
        return made

    asked = dict(modelId="claude", messages=[{"role": "user", "content": [{"text": "Hello"}]}],
                 inferenceConfig={"maxTokens": MOST})
    headers, key, _ = on.plan(CONVERSE, False, said)
    answer = client(headers).converse(**asked)
    check("boto3: the client reads the usage", 345, answer["usage"]["outputTokens"])
    on.charged("boto3: Converse", CONVERSE, key, said)
    headers, key, _ = on.plan(CONVERSE, True, said)
    events = list(client(headers).converse_stream(**asked)["stream"])
    check("boto3: the client reads a stream", 345, events[-1]["metadata"]["usage"]["outputTokens"])
    on.charged("boto3: ConverseStream", CONVERSE, key, said)
    headers, key, _ = on.plan(INVOKE, True, Tokens(1200, 345))
    body = json.dumps({"max_tokens": MOST, "messages": MESSAGES})
    list(client(headers).invoke_model_with_response_stream(modelId="claude", body=body)["body"])
    on.charged("boto3: InvokeModelWithResponseStream", INVOKE, key, Tokens(1200, 345))
    counts = [("X-Amzn-Bedrock-Input-Token-Count", "1200"),
              ("X-Amzn-Bedrock-Output-Token-Count", "345")]
    headers, key, _ = on.of_plan(Plan([b'{"usage":{"inputTokens":1},"text":"Hello"}'],
                                      headers=counts))
    client(headers).invoke_model(modelId="claude", body=body)["body"].read()
    on.charged("boto3: InvokeModel, by its headers", INVOKE, key, Tokens(1200, 345))


def with_litellm(on):
    litellm.suppress_debug_info = True
    logging.getLogger("LiteLLM").setLevel(logging.ERROR)
    asked = dict(model="openai/gpt-5-mini", api_base=f"{on.server.url}/openai/v1", api_key="sk",
                 messages=MESSAGES, max_tokens=MOST, num_retries=0)
    headers, key, _ = on.plan(OPENAI, False)
    answer = litellm.completion(**asked, extra_headers=headers)
    check("litellm: the client reads the usage", 345, answer.usage.completion_tokens)
    on.charged("litellm: a whole answer", OPENAI, key)
    headers, key, _ = on.plan(OPENAI, True)
    list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True},
                            extra_headers=headers))
    on.charged("litellm: a stream", OPENAI, key)
    asked.update(model="anthropic/claude-5", api_base=f"{on.server.url}/anthropic")
    headers, key, _ = on.plan(ANTHROPIC, True)
    list(litellm.completion(**asked, stream=True, extra_headers=headers))
    on.charged("litellm: a stream of another dialect", ANTHROPIC, key)


def main(fleet, name, store):
    on = Check(fleet.server(name, CONFIG + store))
    with_openai(on)
    asyncio.run(with_openai_async(on))
    with_anthropic(on)
    with_gemini(on)
    with_bedrock(on)
    with_litellm(on)


if __name__ == "__main__":
    on_both_stores(main)
