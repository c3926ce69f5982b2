"""A stand-in for the Hub's data sets: it answers the requests by which `huggingface_hub` uploads a folder.

Small texts come in the commit, tables by Git LFS, as the Hub wants them. The committed files are in `files`.
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
    """The service's state. `refuses` is the status that every request gets instead of its answer."""

    token: str
    address: str = ""
    refuses: int = 0
    created: list[dict[str, Any]] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)  # by SHA-256
    files: dict[str, bytes] = field(default_factory=dict)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Return the status and the content of an answer."""
        if self.refuses:
            return self.refuses, {"error": "You don't have the rights to create a dataset under this namespace"}
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
        request = json.loads(body)
        if path == "/api/repos/create":
            self.created.append(request)
            return 200, {"url": f"{self.address}/datasets/{request['organization']}/{request['name']}"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path.endswith("/preupload/main"):
            names = [file["path"] for file in request["files"]]
            modes = {name: "lfs" if name.endswith(".parquet") else "regular" for name in names}
            return 200, {"files": [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]}
        objects = [
            {**entry, "actions": {"upload": {"href": f"{self.address}/lfs/{entry['oid']}"}}}
            for entry in request["objects"]  # of .../info/lfs/objects/batch
        ]
        return 200, {"transfer": "basic", "objects": objects}


@contextmanager
def hub(token: str) -> Iterator[Hub]:
    """Serve a hub on a port of its own."""
    state = Hub(token)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            known = self.path.startswith("/lfs/") or self.headers.get("authorization") == f"Bearer {state.token}"
            status, content = 401, {"error": "Invalid credentials"}
            if known:
                status, content = state.answer(self.command, self.path.partition("?")[0], body)
            data = json.dumps(content).encode()
            self.send_response(status)
            if status >= 400:
                self.send_header("x-error-message", content["error"])
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PUT = handle_any  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
