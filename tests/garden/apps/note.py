"""What an origin answers, and its note of each request that it has read."""

import hashlib
import json
import os

ROOT = os.environ.get("GARDEN_LOG", "garden.log")


def note(method, name, body):
    """Writes one line for a request that was read whole. Returns the answer's body."""
    told = {"id": name, "method": method, "bytes": len(body),
            "sha256": hashlib.sha256(body).hexdigest()}
    text = json.dumps(told)
    with open(ROOT, "a") as log:
        log.write(text + "\n")
    return text.encode()


def content(path):
    """The body that a path asks for beside the note, and the status: `/large`, `/none`."""
    if path.endswith("/none"):
        return 204, b""
    if path.endswith("/large"):
        return 200, bytes(range(256)) * 4096
    return 200, None
