"""OpenAI's files and Batch API, in memory: upload, submit, poll, fetch.

A batch moves on with each GET of it (`batch_polls`) or with time (`batch_seconds`); listing batches moves nothing. Its
lines are answered when it ends, each through the script (path `batch:/v1/chat/completions`).
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from tests.protocol_server.http import Reply, Request
from tests.protocol_server.openai import CHAT, OpenAI
from tests.protocol_server.settings import Settings

MOST_LINES = 50_000
PREFIXES = ("/v1/files", "/v1/batches")
EXPIRED = "This request could not be executed before the completion window expired."
CANCELLED = "The batch was cancelled before this request executed."
AnswerLine = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


@dataclass
class File:
    """A file as it is stored."""

    content: bytes
    filename: str
    purpose: str
    id: str = field(default_factory=lambda: f"file-{uuid4().hex[:22]}")
    created: int = field(default_factory=lambda: int(time.time()))

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": len(self.content),
            "created_at": self.created,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


@dataclass
class Batch:
    """A batch: its public JSON and how far it is."""

    body: dict[str, Any]
    lines: list[dict[str, Any]]
    started: float = field(default_factory=time.monotonic)
    polls: int = 0


class Batches:
    """The two resources and their routes."""

    def __init__(self, settings: Settings, answer_line: AnswerLine) -> None:
        self.settings = settings
        self.answer_line = answer_line
        self.files: dict[str, File] = {}
        self.batches: dict[str, Batch] = {}

    def handle(self, request: Request) -> Reply:
        """The reply to any request below /v1/files or /v1/batches."""
        kind, *rest = request.path.removeprefix("/v1/").strip("/").split("/")
        call = getattr(self, f"_{request.method.lower()}_{kind}{'_' + rest[1] if len(rest) > 1 else ''}", None)
        if call is None or len(rest) > 2:
            return _error(404, f"Invalid URL ({request.method} {request.path})")
        known: dict[str, Any] = self.files if kind == "files" else self.batches
        if rest and rest[0] not in known:
            return _error(404, f"No such {kind} object: {rest[0]}")
        if rest:
            reply: Reply = call(known[rest[0]])
        else:
            reply = call(request) if request.method == "POST" else self._list(known, request.query)
        return reply

    def _post_files(self, request: Request) -> Reply:
        try:
            form = read_form(request)
        except (ValueError, IndexError):
            return _error(400, "Could not parse multipart form")
        filename, content = form.get("file", ("", b""))
        purpose = form.get("purpose", ("", b""))[1].decode()
        if not filename or not purpose:
            return _error(400, "'file' and 'purpose' are required properties")
        return _json(self._store(content, filename, purpose).to_json())

    def _get_files(self, file: File) -> Reply:
        return _json(file.to_json())

    def _get_files_content(self, file: File) -> Reply:
        return Reply(200, file.content, {"content-type": "application/octet-stream"})

    def _delete_files(self, file: File) -> Reply:
        del self.files[file.id]
        return _json({"id": file.id, "object": "file", "deleted": True})

    def _post_batches(self, request: Request) -> Reply:
        payload = json.loads(request.body or b"null") or {}
        file = self.files.get(payload.get("input_file_id", ""))
        if file is None or file.purpose != "batch" or payload.get("completion_window") != "24h":
            return _error(400, "Invalid input_file_id, purpose or completion_window")
        lines, problems = read_lines(file.content, payload.get("endpoint", ""))
        batch = Batch(_batch_json(payload, len(lines)), lines)
        if problems:
            batch.lines = []
            self._end(batch, "failed", errors={"object": "list", "data": problems})
        self.batches[batch.body["id"]] = batch
        return _json(batch.body)

    def _get_batches(self, batch: Batch) -> Reply:
        batch.polls += 1
        self._advance(batch)
        return _json(batch.body)

    def _post_batches_cancel(self, batch: Batch) -> Reply:
        if batch.body["status"] not in {"validating", "in_progress", "finalizing"}:
            return _error(400, f"Cannot cancel a batch with status '{batch.body['status']}'.")
        self._answer(batch, len(batch.lines) // 2, ("batch_cancelled", CANCELLED))
        self._end(batch, "cancelled")
        return _json(batch.body)

    def _list(self, known: dict[str, Any], query: str) -> Reply:
        """A page, newest first."""
        wanted = dict(part.split("=", 1) for part in query.split("&") if "=" in part)
        names = list(reversed(known))
        start = names.index(wanted["after"]) + 1 if wanted.get("after") in known else 0
        page = names[start : start + int(wanted.get("limit", 20))]
        rows = [known[name].to_json() if isinstance(known[name], File) else known[name].body for name in page]
        more = start + len(page) < len(names)
        ends = {"first_id": page[0] if page else None, "last_id": page[-1] if page else None}
        return _json({"object": "list", "data": rows, "has_more": more} | ends)

    def _advance(self, batch: Batch) -> None:
        """Move a batch on, by polls or by time."""
        if batch.body["status"] not in {"validating", "in_progress", "finalizing"}:
            return
        seconds, polls = self.settings.batch_seconds, max(1, self.settings.batch_polls)
        share = batch.polls / polls if seconds is None else (time.monotonic() - batch.started) / max(seconds, 1e-9)
        if share >= 1:
            self._finish(batch)
        elif share > 0:
            batch.body["status"] = "finalizing" if share >= 0.8 else "in_progress"
            batch.body["in_progress_at"] = batch.body["in_progress_at"] or int(time.time())

    def _finish(self, batch: Batch) -> None:
        outcome = self.settings.batch_outcome
        if outcome == "failed":
            problem = {"code": "token_limit_exceeded", "message": "Enqueued token limit reached.", "line": None}
            self._end(batch, "failed", errors={"object": "list", "data": [problem | {"param": None}]})
            return
        reach = len(batch.lines) // 2 if outcome == "expired" else len(batch.lines)
        self._answer(batch, reach, ("batch_expired", EXPIRED))
        self._end(batch, outcome)

    def _answer(self, batch: Batch, reach: int, rest: tuple[str, str]) -> None:
        """Answer the first `reach` lines, give the others an error, and write both files, not in the input's order."""
        good: list[dict[str, Any]] = []
        bad: list[dict[str, Any]] = []
        for line in batch.lines[:reach]:
            status, body = self.answer_line(line["body"])
            response = {"status_code": status, "request_id": uuid4().hex, "body": body}
            (good if status == 200 else bad).append(_line(line, response, None))
        error = {"code": rest[0], "message": rest[1]}
        bad += [_line(line, None, error) for line in batch.lines[reach:]]
        for name, lines in (("output", good), ("error", bad)):
            if lines:
                text = "".join(json.dumps(line) + "\n" for line in reversed(lines))
                file = self._store(text.encode(), f"batch_{name}.jsonl", "batch_output")
                batch.body[f"{name}_file_id"] = file.id
        batch.body["request_counts"] |= {"completed": len(good), "failed": len(bad)}

    def _end(self, batch: Batch, status: str, **more: Any) -> None:
        batch.body |= {"status": status, f"{status}_at": int(time.time())} | more

    def _store(self, content: bytes, filename: str, purpose: str) -> File:
        file = File(content, filename, purpose)
        self.files[file.id] = file
        return file


def read_form(request: Request) -> dict[str, tuple[str, bytes]]:
    """The parts of a multipart/form-data body: name -> (file name, content)."""
    boundary = request.headers["content-type"].split("boundary=")[1].strip('"').encode()
    form = {}
    for part in (b"\r\n" + request.body).split(b"\r\n--" + boundary)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        line = next(line for line in head.decode().split("\r\n") if line.lower().startswith("content-disposition"))
        fields = dict(piece.strip().split("=", 1) for piece in line.split(";") if "=" in piece)
        form[fields["name"].strip('"')] = (fields.get("filename", "").strip('"'), content)
    return form


def read_lines(content: bytes, endpoint: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The requests of an input file and, as in a failed batch's `errors`, what is wrong with them."""
    lines: list[dict[str, Any]] = []
    problems: list[dict[str, Any]] = []
    seen: set[str] = set()
    for number, text in enumerate(content.splitlines(), start=1):
        try:
            line = json.loads(text)
            code = _line_problem(line, endpoint, seen, lines)
        except (ValueError, KeyError, TypeError, AttributeError):
            code, line = "invalid_json_line", {}
        if code:
            problems.append({"code": code, "message": f"Line {number}: {code}", "line": number, "param": None})
        seen.add(line.get("custom_id", ""))
        lines.append(line)
    if not lines or len(lines) > MOST_LINES:
        problems.append({"code": "invalid_file", "message": f"{len(lines)} requests", "line": None, "param": None})
    return lines, problems


def _line_problem(line: dict[str, Any], endpoint: str, seen: set[str], lines: list[dict[str, Any]]) -> str | None:
    if line["custom_id"] in seen:
        return "duplicate_custom_id"
    if line["url"] != endpoint or endpoint != CHAT:
        return "invalid_url"
    if line["method"] != "POST":
        return "invalid_method"
    first = lines[0].get("body", {}).get("model") if lines else line["body"]["model"]
    return "mismatched_model" if line["body"]["model"] != first else None


def _line(line: dict[str, Any], response: Any, error: Any) -> dict[str, Any]:
    return {"id": f"batch_req_{uuid4().hex}", "custom_id": line["custom_id"], "response": response, "error": error}


def _batch_json(payload: dict[str, Any], total: int) -> dict[str, Any]:
    now = int(time.time())
    empty: tuple[str, ...] = (
        "errors",
        "output_file_id",
        "error_file_id",
        "in_progress_at",
        "finalizing_at",
        "completed_at",
    )
    empty += ("failed_at", "expired_at", "cancelling_at", "cancelled_at")
    return {
        "id": f"batch_{uuid4().hex}",
        "object": "batch",
        "endpoint": payload["endpoint"],
        "input_file_id": payload["input_file_id"],
        "completion_window": "24h",
        "status": "validating",
        "created_at": now,
        "expires_at": now + 86400,
        "request_counts": {"total": total, "completed": 0, "failed": 0},
        "metadata": payload.get("metadata"),
    } | dict.fromkeys(empty)


def _json(body: dict[str, Any]) -> Reply:
    return Reply(200, json.dumps(body).encode())


def _error(status: int, message: str) -> Reply:
    return Reply(status, json.dumps(OpenAI().error(status, message)).encode())
