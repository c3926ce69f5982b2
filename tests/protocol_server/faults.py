"""Faults on demand: which request they apply to, and what they do.

A fault is `{"when": {...}, "do": KIND, ...}`; the first one that applies is used. All conditions of `when` must hold.
The numbers count the requests that `contains` selects, from 1, since the script was set.

    contains: "garage"      the body contains this
    request: [3, 5]         the third and the fifth
    every: 7                the 7th, 14th, ...
    after: 20               all but the first 20

`times` limits how often a fault applies. The kinds and their parameters:

    status       status, code, message, headers, retry_after (s), retry_after_ms, retry_delay (Gemini), body
    quota        429 with insufficient_quota (Gemini: a quota per day)
    hang         never answers                     slow       answers after `seconds`
    half         half a body, then closes          close      closes without a byte
    reset        resets the connection (RST)       html       200 with an HTML page
    body         200 with `body` as the whole body (default: JSON cut off)
    answer       `content` instead of the model's  prose      words instead of JSON
    fenced       the JSON between ``` fences       foreign    one value that was not offered
    missing      a slot is left out                extra      a slot too many
    duplicate    a key twice                       long       as many characters as the request allows
    length       cut off, finish reason length     null       content is null
    empty        content is ""                     refusal    refused (Gemini: SAFETY)
    blocked      content_filter (Gemini: promptFeedback.blockReason)
    no_choices   an empty list                     model      another model's name, `model`
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WIRE = {"hang", "half", "close", "reset"}
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
        wanted = when.get("request", [self.seen])
        return (
            self.left > 0
            and self.seen in (wanted if isinstance(wanted, list) else [wanted])
            and self.seen % when.get("every", 1) == 0
            and self.seen > when.get("after", 0)
        )


def choose(faults: list[Fault], body: str) -> Fault | None:
    """Return the first fault that applies; every fault counts every request."""
    hits = [fault for fault in faults if fault.applies(body)]
    if hits:
        hits[0].left -= 1
    return hits[0] if hits else None


def spoil(fault: Fault, payload: dict[str, Any], offered: dict[str, list[str]], content: str) -> Answer:
    """Return the answer with the fault in it; faults of the connection or the status do not change it."""
    entry, kind = fault.entry, fault.kind
    if kind in ("foreign", "missing", "extra", "duplicate"):
        return Answer(_spoil_slots(kind, json.loads(content), entry, offered))
    form = payload.get("generationConfig", payload)
    most = form.get("max_tokens") or form.get("max_completion_tokens") or form.get("maxOutputTokens") or 2500
    answers: dict[str, Callable[[], Answer]] = {
        "answer": lambda: Answer(entry["content"]),
        "prose": lambda: Answer(PROSE),
        "fenced": lambda: Answer(f"```json\n{content}\n```"),
        "long": lambda: Answer(("blah " * 2000)[: 4 * int(most)]),
        "length": lambda: Answer(content[: len(content) // 2], finish="length"),
        "null": lambda: Answer(None),
        "empty": lambda: Answer(""),
        "refusal": lambda: Answer(None, finish="safety", refusal="I'm sorry, I can't help with that."),
        "blocked": lambda: Answer(None, finish="blocked"),
        "no_choices": lambda: Answer(None, choices=False),
        "model": lambda: Answer(content, model=entry.get("model", "another-model-0613")),
    }
    return answers[kind]() if kind in answers else Answer(content)


def _spoil_slots(kind: str, answer: dict[str, str], entry: dict[str, Any], offered: dict[str, list[str]]) -> str:
    slot = str(entry.get("slot") or next(iter(answer)))
    if kind == "foreign":
        answer[slot] = "xylophone"
    elif kind == "missing":
        del answer[slot]
    elif kind == "extra":
        answer["99z"] = "xylophone"
    else:
        again = next((option for option in offered.get(slot, []) if option != answer[slot]), answer[slot])
        return json.dumps(answer | {"__again__": again}).replace("__again__", slot)
    return json.dumps(answer)


KINDS = WIRE | {"status", "quota", "slow", "html", "body", "answer", "prose", "fenced", "foreign", "missing", "extra"}
KINDS |= {"duplicate", "long", "length", "null", "empty", "refusal", "blocked", "no_choices", "model"}
