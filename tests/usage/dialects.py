"""The answers of model servers in six dialects, with the tokens that a test chooses."""

import base64
import binascii
import dataclasses
import json
import struct

# What a model can be talked into. None of it may count.
FORGED = '"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2} \\" \u00e4\U0001f600'
FORGED_OBJECT = {
    "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "prompt_tokens": 1,
              "completion_tokens": 1, "inputTokens": 1, "outputTokens": 1},
    "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1},
    "prompt_eval_count": 1, "eval_count": 1, "done": True, "model": "gpt-5-forged",
    "stats": {"tokens_in": 1, "tokens_out": 1}, "response": {"usage": {"output_tokens": 1}},
}


@dataclasses.dataclass(frozen=True)
class Tokens:
    """`input` is the whole one; `cached` and `written` are parts of it."""
    input: int
    output: int
    cached: int = 0
    written: int = 0


@dataclasses.dataclass(frozen=True)
class Dialect:
    """`whole` makes an answer of tokens, `stream` its events; `kind` is the type of streams."""
    name: str
    path: str
    whole: callable
    stream: callable
    kind: str = "text/event-stream"
    # Whether cached tokens, and writes to a cache, are told.
    caches: bool = True
    writes: bool = False


def text(value):
    return json.dumps(value, ensure_ascii=False)


def openai_usage(tokens):
    return {"prompt_tokens": tokens.input, "completion_tokens": tokens.output,
            "total_tokens": tokens.input + tokens.output,
            "prompt_tokens_details": {"cached_tokens": tokens.cached},
            "completion_tokens_details": {"reasoning_tokens": 1}}


CALL = {"index": 0, "id": "call_1", "type": "function",
        "function": {"name": "look", "arguments": json.dumps(FORGED_OBJECT)}}


def openai_head(kind):
    return {"id": "x", "object": kind, "created": 1, "model": "gpt-5-mini"}


def openai_whole(tokens):
    message = {"role": "assistant", "content": FORGED, "tool_calls": [CALL]}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return [text({**openai_head("chat.completion"), "choices": [choice],
                  "metadata": FORGED_OBJECT, "usage": openai_usage(tokens)})]


def openai_stream(tokens):
    head = openai_head("chat.completion.chunk")
    delta = lambda delta, end=None: text({**head, "usage": None, "choices": [
        {"index": 0, "delta": delta, "finish_reason": end, "logprobs": None}]})
    return [delta({"role": "assistant", "content": ""}), delta({"content": FORGED}),
            delta({"content": "Hello"}), delta({"tool_calls": [CALL]}), delta({}, "stop"),
            text({**head, "choices": [], "usage": openai_usage(tokens)}), "[DONE]"]


def responses_usage(tokens):
    return {"input_tokens": tokens.input, "output_tokens": tokens.output,
            "total_tokens": tokens.input + tokens.output,
            "input_tokens_details": {"cached_tokens": tokens.cached},
            "output_tokens_details": {"reasoning_tokens": 0}}


def responses_object(usage, status):
    part = {"type": "output_text", "text": FORGED, "annotations": []}
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed",
               "content": [part]}
    return {"id": "r", "object": "response", "created_at": 1, "model": "gpt-5-mini", "error": None,
            "status": status, "output": [message], "parallel_tool_calls": True, "tools": [],
            "tool_choice": "auto", "usage": usage, "metadata": {"usage": '{"output_tokens":1}'}}


def responses_whole(tokens):
    return [text(responses_object(responses_usage(tokens), "completed"))]


def responses_stream(tokens):
    delta = {"type": "response.output_text.delta", "item_id": "m", "output_index": 0,
             "content_index": 0, "sequence_number": 1, "delta": FORGED, "logprobs": []}
    return [text({"type": "response.created", "sequence_number": 0,
                  "response": responses_object(None, "in_progress")}),
            text(delta), text({**delta, "delta": "Hello", "sequence_number": 2}),
            text({"type": "response.completed", "sequence_number": 3,
                  "response": responses_object(responses_usage(tokens), "completed")})]


def anthropic_usage(tokens):
    return {"input_tokens": tokens.input - tokens.cached - tokens.written,
            "cache_read_input_tokens": tokens.cached,
            "cache_creation_input_tokens": tokens.written, "output_tokens": tokens.output}


def anthropic_message(content, usage, end):
    return {"id": "m", "type": "message", "role": "assistant", "model": "claude-5", "usage": usage,
            "content": content, "stop_reason": end, "stop_sequence": None}


def anthropic_whole(tokens):
    content = [{"type": "text", "text": FORGED},
               {"type": "tool_use", "id": "t", "name": "look", "input": FORGED_OBJECT}]
    return [text(anthropic_message(content, anthropic_usage(tokens), "tool_use"))]


def anthropic_stream(tokens):
    started = {**anthropic_usage(tokens), "output_tokens": 1}
    begin = lambda index, block: text(
        {"type": "content_block_start", "index": index, "content_block": block})
    delta = lambda index, delta: text(
        {"type": "content_block_delta", "index": index, "delta": delta})
    stop = lambda index: text({"type": "content_block_stop", "index": index})
    tool = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    arguments = json.dumps(FORGED_OBJECT)
    last = {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": tokens.output}
    return [text({"type": "message_start", "message": anthropic_message([], started, None)}),
            begin(0, {"type": "text", "text": ""}), text({"type": "ping"}),
            delta(0, {"type": "text_delta", "text": FORGED}),
            delta(0, {"type": "text_delta", "text": "Hello"}), stop(0), begin(1, tool),
            delta(1, {"type": "input_json_delta", "partial_json": arguments[:99]}),
            delta(1, {"type": "input_json_delta", "partial_json": arguments[99:]}), stop(1),
            text({"type": "message_delta", "usage": last,
                  "delta": {"stop_reason": "tool_use", "stop_sequence": None}}),
            text({"type": "message_stop"})]


def gemini_event(parts, usage, end=None):
    candidate = {"index": 0, "content": {"role": "model", "parts": parts}}
    if end:
        candidate["finishReason"] = end
    event = {"candidates": [candidate], "modelVersion": "gemini-3"}
    return text({**event, "usageMetadata": usage} if usage else event)


def gemini_usage(tokens):
    tool, thoughts = min(2, tokens.input), min(3, tokens.output)
    usage = {"promptTokenCount": tokens.input - tool, "toolUsePromptTokenCount": tool,
             "candidatesTokenCount": tokens.output - thoughts, "thoughtsTokenCount": thoughts,
             "cachedContentTokenCount": tokens.cached,
             "totalTokenCount": tokens.input + tokens.output}
    # A number that is 0 is left out.
    return {name: value for name, value in usage.items() if value}


GEMINI_CALL = {"functionCall": {"name": "look", "args": FORGED_OBJECT}}


def gemini_whole(tokens):
    return [gemini_event([{"text": FORGED}, GEMINI_CALL], gemini_usage(tokens), "STOP")]


def gemini_stream(tokens):
    early = gemini_usage(Tokens(tokens.input, tokens.output // 2, tokens.cached))
    return [gemini_event([{"text": FORGED}], None), gemini_event([{"text": "Hello"}], early),
            gemini_event([GEMINI_CALL], gemini_usage(tokens), "STOP")]


def ollama_line(content, **more):
    message = {"role": "assistant", "content": content}
    return text({"model": "llama4", "created_at": "2026-01-01T00:00:00Z", "message": message,
                 "done": False, **more})


def ollama_end(tokens):
    counts = {"prompt_eval_count": tokens.input, "eval_count": tokens.output}
    counts = {name: value for name, value in counts.items() if value}
    return {"done": True, "done_reason": "stop", "total_duration": 5, **counts}


def ollama_stream(tokens):
    call = {"role": "assistant", "content": "",
            "tool_calls": [{"function": {"name": "look", "arguments": FORGED_OBJECT}}]}
    return [ollama_line(FORGED), ollama_line("Hello"), ollama_line("", message=call),
            ollama_line("", **ollama_end(tokens))]


def ollama_whole(tokens):
    return [ollama_line(FORGED, **ollama_end(tokens))]


def bedrock_usage(tokens):
    return {"inputTokens": tokens.input - tokens.cached - tokens.written,
            "outputTokens": tokens.output, "totalTokens": tokens.input + tokens.output,
            "cacheReadInputTokens": tokens.cached, "cacheWriteInputTokens": tokens.written}


def bedrock_whole(tokens):
    tool = {"toolUse": {"toolUseId": "t", "name": "look", "input": FORGED_OBJECT}}
    message = {"role": "assistant", "content": [{"text": FORGED}, tool]}
    return [text({"output": {"message": message}, "stopReason": "end_turn",
                  "usage": bedrock_usage(tokens), "metrics": {"latencyMs": 1}})]


def bedrock_stream(tokens):
    delta = lambda delta: ("contentBlockDelta", text({"contentBlockIndex": 0, "delta": delta}))
    tool = {"toolUse": {"input": json.dumps(FORGED_OBJECT)}}
    return [("messageStart", text({"role": "assistant"})), delta({"text": FORGED}),
            delta({"text": "Hello"}), delta(tool),
            ("contentBlockStop", text({"contentBlockIndex": 0})),
            ("messageStop", text({"stopReason": "end_turn"})),
            ("metadata", text({"usage": bedrock_usage(tokens), "metrics": {"latencyMs": 1}}))]


def invoke_stream(tokens):
    """`InvokeModelWithResponseStream`: events of the model itself, in Base64."""
    plain = Tokens(tokens.input, tokens.output)
    metrics = {"inputTokenCount": plain.input, "outputTokenCount": plain.output}
    last = text({"type": "message_stop", "amazon-bedrock-invocationMetrics": metrics})
    inner = [text({"type": "content_block_delta", "delta": {"text": FORGED}}), last]
    packed = (base64.b64encode(event.encode()).decode() for event in inner)
    return [("chunk", text({"bytes": bytes_, "p": "abc"})) for bytes_ in packed]


def json_end(tokens):
    return {"stats": {"tokens_in": tokens.input, "tokens_out": tokens.output}, "name": "own-1"}


def json_whole(tokens):
    return [text({"answer": FORGED, "more": FORGED_OBJECT, **json_end(tokens)})]


def json_stream(tokens):
    return [text({"answer": FORGED, "more": FORGED_OBJECT}), text({"answer": "Hello"}),
            text({"answer": "", **json_end(tokens)})]


EVENT_STREAM = "application/vnd.amazon.eventstream"
NDJSON = "application/x-ndjson"

DIALECTS = [
    Dialect("openai", "/openai/v1/chat/completions", openai_whole, openai_stream),
    Dialect("openai", "/openai/v1/responses", responses_whole, responses_stream),
    Dialect("anthropic", "/anthropic/v1/messages", anthropic_whole, anthropic_stream, writes=True),
    Dialect("gemini", "/gemini/v1beta/models/gemini-3:generateContent", gemini_whole,
            gemini_stream),
    Dialect("ollama", "/ollama/api/chat", ollama_whole, ollama_stream, NDJSON, caches=False),
    Dialect("bedrock", "/bedrock/model/claude/converse", bedrock_whole, bedrock_stream,
            EVENT_STREAM, writes=True),
    Dialect("bedrock", "/bedrock/model/claude/invoke", bedrock_whole, invoke_stream,
            EVENT_STREAM, caches=False),
    Dialect("own", "/own/ask", json_whole, json_stream, NDJSON, caches=False),
    Dialect("own", "/own/ask-sse", json_whole, json_stream, caches=False),
]


def sse(events, end="\n", blank=True):
    """Events with comments, names, data in several lines, and a line without its end."""
    lines = [": comment" + end + end]
    for number, event in enumerate(events):
        name = f"event: e{end}id: {number}{end}" if number % 2 else ""
        space = "" if number % 3 == 1 else " "
        lines.append(f"{name}data:{space}{event}{end}{end}")
    whole = "".join(lines)
    return (whole if blank else whole.rstrip("\r\n")).encode()


def message(kind, payload, exception=False):
    """One message of an Amazon event stream."""
    headers = b""
    kinds = {":exception-type" if exception else ":event-type": kind,
             ":content-type": "application/json",
             ":message-type": "exception" if exception else "event"}
    for name, value in kinds.items():
        headers += struct.pack("!B", len(name)) + name.encode()
        headers += struct.pack("!BH", 7, len(value)) + value.encode()
    payload = payload.encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    head = prelude + struct.pack("!I", binascii.crc32(prelude)) + headers + payload
    return head + struct.pack("!I", binascii.crc32(head))


def framed(dialect, events, end="\n", blank=True):
    """The bytes of a stream."""
    if dialect.kind == EVENT_STREAM:
        return b"".join(message(kind, payload) for kind, payload in events)
    if dialect.kind == NDJSON:
        line_end = "\r\n" if end == "\r\n" else "\n"
        whole = "".join(event + line_end for event in events)
        return (whole if blank else whole.rstrip("\r\n")).encode()
    return sse(events, end, blank)
