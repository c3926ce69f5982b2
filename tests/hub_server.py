"""A stand-in for the Hub's data sets: it answers what `huggingface_hub` asks when a folder is uploaded, over real HTTP.

Small texts come in the commit, tables by Git LFS, as the Hub wants them. What was committed is in `files`.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hub:
    """What it was sent. `refuses` is the status that every request gets instead."""

    token: str
    address: str = ""
    refuses: int = 0
    created: list[dict[str, Any]] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)  # by SHA-256
    files: dict[str, bytes] = field(default_factory=dict)
    cards: list[str] = field(default_factory=list)  # as they came to be looked at
    asked: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Status and content."""
        self.asked.append(f"{method} {path}")
        if self.refuses:
            return self.refuses, {"error": "You don't have the rights to create a dataset under this namespace"}
        if path == "/api/repos/create":
            asked = json.loads(body)
            self.created.append(asked)
            return 200, {"url": f"{self.address}/datasets/{asked['organization']}/{asked['name']}"}
        if path == "/api/validate-yaml":
            self.cards.append(json.loads(body)["content"])
            return 200, {"errors": [], "warnings": []}
        if path.endswith("/preupload/main"):
            named = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".parquet") else "regular" for name in named}
            return 200, {"files": [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]}
        if path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            places = [{**it, "actions": {"upload": {"href": f"{self.address}/lfs/{it['oid']}"}}} for it in objects]
            return 200, {"transfer": "basic", "objects": places}
        if method == "PUT":
            self.stored[hashlib.sha256(body).hexdigest()] = body
            return 200, {}
        if path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.files[value["path"]] = self.stored[value["oid"]]
            url = f"{self.address}/datasets/o/n/commit/{'0' * 40}"
            return 200, {"commitUrl": url, "commitOid": "0" * 40, "commitMessage": "m", "hookOutput": ""}
        return 404, {"error": f"no {path}"}


@contextmanager
def hub(token: str) -> Iterator[Hub]:
    """The service, on a port of its own."""
    state = Hub(token)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            chunked = "chunked" in self.headers.get("transfer-encoding", "")
            body = self._chunks() if chunked else self.rfile.read(int(self.headers.get("content-length") or 0))
            known = self.path.startswith("/lfs/") or self.headers.get("authorization") == f"Bearer {state.token}"
            path = self.path.partition("?")[0]
            refused = 401, {"error": "Invalid credentials"}
            status, content = state.answer(self.command, path, body) if known else refused
            data = json.dumps(content).encode()
            self.send_response(status)
            if status >= 400:
                self.send_header("x-error-message", content["error"])
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_HEAD = handle_any  # noqa: N815

        def _chunks(self) -> bytes:
            whole = b""
            while size := int(self.rfile.readline(), 16):
                whole += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return whole

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
