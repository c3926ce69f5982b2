"""Faults on demand: which request they apply to, and what they do.

A fault is `{"when": {...}, "do": KIND, ...}`; the first one that applies is used. All conditions of `when` must hold.
The numbers count the requests that `contains` selects, from 1, since the script was set.

    contains: "garage"      the body contains this
    request: 3              the third
    every: 7                the 7th, 14th, ...
    after: 20               all but the first 20

`times` limits how often a fault applies. The kinds and their parameters:

    status       status, code, message, headers, retry_after (s), retry_after_ms, retry_delay (Gemini), body
    quota        429 with insufficient_quota (Gemini: a quota per day)
    hang         never answers                     slow       answers after `seconds`
    half         half a body, then closes          close      closes without a byte
    reset        resets the connection (RST)       html       200 with an HTML page
    drip         blanks without an end             gzip       the body, compressed
    tokens       `count` of tokens
    body         200 with `body` as the whole body (default: JSON cut off)
    answer       `content` instead of the model's  prose      words instead of JSON
    missing      a slot is left out                foreign    one value that was not offered
    length       cut off, finish reason length     null       content is null
    no_choices   an empty list                     refusal    refused (Gemini: SAFETY)
    model        another model's name, `model`     blocked    content_filter (Gemini: promptFeedback.blockReason)
"""

import json
from dataclasses import dataclass
from typing import Any

WIRE = {"hang", "half", "close", "reset", "drip"}
PROSE = "Sure! Here are the words: closes, table and {under"


@dataclass
class Answer:
    """A model's answer, without the JSON of the service around it."""

    content: str | None
    finish: str = "stop"  # stop, length, safety, blocked
    refusal: str | None = None
    model: str | None = None
    choices: bool = True


class Fault:
    """One entry of a script, with its counters."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.entry, self.kind, self.when = entry, entry["do"], entry.get("when", {})
        self.left, self.seen = entry.get("times", float("inf")), 0
        if unknown := self.when.keys() - {"contains", "request", "every", "after"} or {self.kind} - KINDS:
            raise ValueError(f"no such condition or fault: {unknown}")

    def applies(self, body: str) -> bool:
        """Return whether the fault applies to this request; count the request if it is selected."""
        when = self.when
        if when.get("contains", "") not in body:
            return False
        self.seen += 1
        return (
            self.left > 0
            and self.seen == when.get("request", self.seen)
            and self.seen % when.get("every", 1) == 0
            and self.seen > when.get("after", 0)
        )


def choose(faults: list[Fault], body: str) -> Fault | None:
    """Return the first fault that applies; every fault counts every request."""
    hits = [fault for fault in faults if fault.applies(body)]
    if hits:
        hits[0].left -= 1
    return hits[0] if hits else None


def spoil(fault: Fault, content: str) -> Answer:
    """Return the answer with the fault in it; faults of the connection or the status do not change it."""
    if fault.kind in ("foreign", "missing"):
        answer = json.loads(content)
        slot = str(fault.entry.get("slot") or next(iter(answer)))
        kept = {name: letter for name, letter in answer.items() if name != slot}
        return Answer(json.dumps(kept | ({slot: "xylophone"} if fault.kind == "foreign" else {})))
    answers = {
        "answer": Answer(fault.entry.get("content")),
        "prose": Answer(PROSE),
        "length": Answer(content[: len(content) // 2], finish="length"),
        "null": Answer(None),
        "refusal": Answer(None, finish="safety", refusal="I'm sorry, I can't help with that."),
        "blocked": Answer(None, finish="blocked"),
        "no_choices": Answer(None, choices=False),
        "model": Answer(content, model=fault.entry.get("model", "another-model-0613")),
    }
    return answers.get(fault.kind, Answer(content))


KINDS = WIRE | {"status", "quota", "slow", "html", "body", "gzip", "tokens", "answer", "prose", "foreign", "missing"}
KINDS |= {"length", "null", "refusal", "blocked", "no_choices", "model"}
