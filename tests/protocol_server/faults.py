"""Misbehaviour on demand: which request is spoilt, and how.

A script is `{"faults": [{"when": {...}, "do": KIND, ...}, ...]}`; the first fault that applies wins.

`when` (all that are given must hold; empty: always). `path`, `key` and `contains` say which requests a fault looks at;
the numbers count those, from 1, since the script was set. Without `path` these are the requests to a model.

    path: "/v1/files"       the path begins with this; lines of a batch have "batch:/v1/chat/completions"
    contains: "garage"      the body's text contains this
    key: "sk-1"             the API key is this one
    request: 3 | [3, 5]     the third of them; the third and the fifth
    every: 7                the 7th, 14th, ...
    first: 20               the first 20
    after: 20               all but the first 20
    probability: 0.1, seed: 1

Besides `when`: `times` (at most so often), `delay` (seconds before the answer, instead of the latency) and, by KIND:

    status       status, code, type, message, headers, retry_after (s), retry_after_ms, retry_delay (Gemini), body
    quota        429 with insufficient_quota (Gemini: RESOURCE_EXHAUSTED without a delay)
    hang         never answers                     slow       answers after `seconds`
    half         half a body, then closes          close      closes without a byte
    reset        resets the connection (RST)       html       200 with an HTML page
    body         200 with `body` as the whole body (default: JSON cut off)
    answer       `content` instead of the model's  prose      words instead of JSON
    fenced       the JSON between ``` fences       foreign    one value is `word`, which was not offered
    missing      a slot is left out                extra      a slot too many
    duplicate    a key twice                       long       10,000 characters, or as many as the request allows
    length       cut off, finish reason length     null       content is null
    empty        content is ""                     refusal    refused (Gemini: SAFETY)
    blocked      content_filter (Gemini: promptFeedback.blockReason)
    no_choices   an empty list                     model      another model's name, `model`
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.protocol_server.answers import offered

WIRE = {"hang", "half", "close", "reset"}
REFUSAL = "I'm sorry, I can't help with that."


@dataclass(slots=True)
class Answer:
    """What the model says, before a service's own JSON is put around it."""

    content: str | None
    finish: str = "stop"  # stop, length, safety, blocked
    refusal: str | None = None
    model: str | None = None
    choices: bool = True


class Fault:
    """One entry of a script, with its counters."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.entry = entry
        self.kind: str = entry["do"]
        self.when: dict[str, Any] = entry.get("when", {})
        self.left: float = entry.get("times", float("inf"))
        self.seen = 0
        self.random = random.Random(self.when.get("seed", 0))
        if unknown := self.when.keys() - NUMBERS.keys() - {"path", "contains", "key", "seed"}:
            raise ValueError(f"no such condition: {', '.join(sorted(unknown))}")
        if self.kind not in KINDS:
            raise ValueError(f"no such fault: {self.kind}")
        if (needed := {"status": "status", "answer": "content"}.get(self.kind)) and needed not in entry:
            raise ValueError(f"{self.kind} needs {needed}")

    def applies(self, path: str, key: str, body: bytes, is_model: bool) -> bool:
        """Whether this request is spoilt; counts it if it is one of those looked at."""
        when = self.when
        if not (path.startswith(when["path"]) if "path" in when else is_model):
            return False
        if when.get("key", key) != key or when.get("contains", "").encode() not in body:
            return False
        self.seen += 1
        hits = [holds(self, when[name]) for name, holds in NUMBERS.items() if name in when]
        return self.left > 0 and all(hits)


NUMBERS: dict[str, Callable[[Fault, Any], bool]] = {
    "request": lambda fault, which: fault.seen in (which if isinstance(which, list) else [which]),
    "every": lambda fault, step: fault.seen % step == 0,
    "first": lambda fault, count: fault.seen <= count,
    "after": lambda fault, count: fault.seen > count,
    "probability": lambda fault, chance: fault.random.random() < chance,
}


class Script:
    """The faults in force."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.faults = [Fault(entry) for entry in script.get("faults", [])]

    def choose(self, path: str, key: str, body: bytes, is_model: bool) -> Fault | None:
        """The first fault that applies; every fault counts every request."""
        hits = [fault for fault in self.faults if fault.applies(path, key, body, is_model)]
        if not hits:
            return None
        hits[0].left -= 1
        return hits[0]


def spoil(fault: Fault, payload: dict[str, Any], content: str) -> Answer:
    """The answer with the fault in it; faults of the wire or the status leave it as it is."""
    return SPOILERS[fault.kind](fault.entry, payload, content) if fault.kind in SPOILERS else Answer(content)


def most_tokens(payload: dict[str, Any]) -> int:
    """How long an answer may be, as the request says; four characters are a token."""
    form = payload.get("generationConfig", payload)
    said = (form.get(name) for name in ("max_tokens", "max_completion_tokens", "maxOutputTokens"))
    return next((int(most) for most in said if most), 2500)


def _prose(entry: dict[str, Any], payload: dict[str, Any], content: str) -> Answer:
    return Answer(entry.get("content", "Sure! Here are the words: closes, table and {under"))


def _foreign(entry: dict[str, Any], payload: dict[str, Any], content: str) -> Answer:
    answer, place = _opened(content, entry)
    place[_key(place, entry)] = entry.get("word", "xylophone")
    return Answer(json.dumps(answer))


def _missing(entry: dict[str, Any], payload: dict[str, Any], content: str) -> Answer:
    answer, place = _opened(content, entry)
    del place[_key(place, entry)]
    return Answer(json.dumps(answer))


def _extra(entry: dict[str, Any], payload: dict[str, Any], content: str) -> Answer:
    answer, place = _opened(content, entry)
    place[entry.get("name", "99z")] = entry.get("word", "xylophone")
    return Answer(json.dumps(answer))


def _duplicate(entry: dict[str, Any], payload: dict[str, Any], content: str) -> Answer:
    """The same key again, at the end, with another of its options where it has one."""
    answer, place = _opened(content, entry)
    key = _key(place, entry)
    options = next((found for path, found in offered(payload).items() if path.split(".")[-1] == key), [])
    place["__again__"] = next((option for option in options if option != place[key]), place[key])
    return Answer(json.dumps(answer).replace('"__again__"', json.dumps(key)))


def _opened(content: str, entry: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The parsed answer and the first object in it that holds words (or the slot that the fault names)."""
    answer = json.loads(content)
    places = [answer]
    for place in places:
        if isinstance(place, dict):
            named = entry["slot"] in place if "slot" in entry else any(isinstance(v, str) for v in place.values())
            if named:
                return answer, place
            places.extend(place.values())
        elif isinstance(place, list):
            places.extend(place)
    raise ValueError(f"no slot to spoil in {content}")


def _key(place: dict[str, Any], entry: dict[str, Any]) -> str:
    return str(entry.get("slot") or next(key for key, value in place.items() if isinstance(value, str)))


SPOILERS: dict[str, Callable[[dict[str, Any], dict[str, Any], str], Answer]] = {
    "answer": lambda entry, payload, content: Answer(entry["content"]),
    "prose": _prose,
    "fenced": lambda entry, payload, content: Answer(f"```json\n{content}\n```"),
    "foreign": _foreign,
    "missing": _missing,
    "extra": _extra,
    "duplicate": _duplicate,
    "long": lambda entry, payload, content: Answer(("blah " * 2000)[: 4 * most_tokens(payload)]),
    "length": lambda entry, payload, content: Answer(content[: len(content) // 2], finish="length"),
    "null": lambda entry, payload, content: Answer(None),
    "empty": lambda entry, payload, content: Answer(""),
    "refusal": lambda entry, payload, content: Answer(None, finish="safety", refusal=REFUSAL),
    "blocked": lambda entry, payload, content: Answer(None, finish="blocked"),
    "no_choices": lambda entry, payload, content: Answer(None, choices=False),
    "model": lambda entry, payload, content: Answer(content, model=entry.get("model", "another-model-0613")),
}
KINDS = WIRE | set(SPOILERS) | {"status", "quota", "slow", "html", "body"}
