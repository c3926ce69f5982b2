"""How fast the client of the hosted models is, and what a query costs, as JSON, in one run.

    python -m bench.language_models [--requests 2000]

Throughput: against a server in another process that answers after 200 ms, as a share of what N requests in flight can
reach at best. Tokens: of an accepted query (three levels) beside the plain way, one request a query with the
instructions, 100 dictionary words and three whole sentences back.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.protocol_server import ProtocolServer

LATENCY = 0.2
IN_FLIGHT = (8, 32, 128)
PLAIN = (
    "You rewrite sentences that describe moments in videos. Below are a sentence, three versions of it with more and "
    "more words masked, and a list of words. For each version replace every <mask> with a word of the list, of the "
    "same part of speech as the word that was masked, so that the sentence is grammatical and plausible but no longer "
    "describes the moment. Change nothing else, and do not use the original word or a synonym. Answer with a JSON "
    'object: {"level1": "…", "level2": "…", "level3": "…"}.'
)


def tokenizer() -> tuple[str, Callable[[str], int]]:
    """tiktoken's cl100k_base where its file is at hand, else the word pieces of the sentence encoder."""
    try:
        import tiktoken

        encoding = tiktoken.get_encoding("cl100k_base")
        return "tiktoken cl100k_base", lambda text: len(encoding.encode(text))
    except Exception as error:
        from penumbra.tasks.text.embeddings import Encoding, load_encoder

        pieces = load_encoder(Encoding().sentence_model).tokenizer
        return f"all-MiniLM-L6-v2 word pieces ({type(error).__name__} from tiktoken)", lambda t: len(pieces.tokenize(t))


def corner(count: int) -> tuple[list[Any], list[str], list[list[str]], list[str]]:
    """Questions, queries, masked queries and dictionary words of a data set's first training queries."""
    from penumbra.tasks.data.annotations import Annotations
    from penumbra.tasks.data.dataset import Dataset
    from penumbra.tasks.negatives.filling import Filling
    from penumbra.tasks.negatives.fills import masked_queries, training_sentences
    from penumbra.tasks.negatives.providers.hosted import questions
    from penumbra.tasks.negatives.providers.options import Options
    from penumbra.tasks.text.dictionary import Dictionary, dictionary_part
    from penumbra.tasks.text.masks import mask_part
    from penumbra.tasks.text.tags import load_pipeline, tag_part

    name = "charades-cg" if "PENUMBRA_DATA" in os.environ else "scenes"
    annotations = next(iter(Annotations(Dataset(name=name)).parts()))().rows
    tags = tag_part(annotations, load_pipeline("penumbra")).rows
    masks = mask_part(annotations, tags, (0.25, 0.5, 0.75)).rows
    dictionary = Dictionary(dictionary_part([(annotations, tags)]).rows)
    options = Options(training_sentences([(annotations, tags)]), dictionary, Filling().options, 0)
    texts = dict(zip(annotations["qid"].to_pylist(), annotations["query"].to_pylist(), strict=True))
    masked: dict[str, list[str]] = {}
    for row in masks.to_pylist():
        masked.setdefault(row["qid"], []).append(row["masked_query"])
    found = masked_queries(tags, masks)[:count]
    words = sorted(set(dictionary.table["word"].to_pylist()))
    asked = sorted(questions(options, found, 1), key=lambda question: question.shape)
    return asked, [texts[q.qid] for q in found], [masked[q.qid] for q in found], words


def tokens_a_query(count: int, queries_a_request: int) -> dict[str, object]:
    """Tokens of a query in both ways, everything that is sent and answered counted, the schema too."""
    from penumbra.tasks.negatives.providers.openai import OpenAI, OpenAIService
    from penumbra.tasks.negatives.providers.prompts import load_prompt
    from penumbra.tasks.negatives.providers.questions import letters

    name, tokens = tokenizer()
    asked, texts, masked, words = corner(count)
    service = OpenAIService(OpenAI(), load_prompt("fill-slots-1", "queries"))
    batches = [asked[start : start + queries_a_request] for start in range(0, len(asked), queries_a_request)]
    text = form = answer = 0
    for batch in batches:
        body = service.payload(batch)
        text += sum(tokens(message["content"]) for message in body["messages"])
        form += tokens(json.dumps(body["response_format"], separators=(",", ":")))
        answer += tokens(json.dumps({number: choice[0] for number, choice in letters(batch).items()}))
    draw = random.Random(0)
    plain = sum(
        tokens(f"{PLAIN}\n\nWords: {', '.join(draw.sample(words, min(100, len(words))))}\n\nSentence: {query}\n")
        + tokens("\n".join(f"level{i}: {line}" for i, line in enumerate(lines, 1)))
        + tokens(json.dumps({f"level{i}": query for i in (1, 2, 3)}))
        for query, lines in zip(texts, masked, strict=True)
    )
    ours = text + form + answer
    return {
        "counted_with": name,
        "queries": len(texts),
        "queries_a_request": queries_a_request,
        "tokens_a_query": round(ours / len(texts), 1),
        "of_which_schema": round(form / len(texts), 1),
        "of_which_answer": round(answer / len(texts), 1),
        "plain_tokens_a_query": round(plain / len(texts), 1),
        "share_of_plain": round(ours / plain, 3),
        "share_of_plain_without_schema": round((ours - form) / plain, 3),
    }


def throughput(url: str, in_flight: int, requests: int) -> dict[str, object]:
    """Requests a second of the client, one query in each, answers parsed and stored."""
    from penumbra.tasks.negatives.providers.answers import Answers
    from penumbra.tasks.negatives.providers.asking import Client
    from penumbra.tasks.negatives.providers.budget import Budget
    from penumbra.tasks.negatives.providers.openai import OpenAI, OpenAIService
    from penumbra.tasks.negatives.providers.prompts import load_prompt

    settings = OpenAI(base_url=url, in_flight=in_flight)
    asked = corner(requests)[0][:requests]
    with tempfile.TemporaryDirectory() as folder:
        answers = Answers(Path(folder))
        service = OpenAIService(settings, load_prompt("fill-slots-1", "queries"))
        with Budget(None, answers) as budget:
            client = Client(service, answers, settings, budget, "bench", 1, len(asked))
            started, worked = time.perf_counter(), time.process_time()
            tally = asyncio.run(client.ask([asked]))
        seconds, worked = time.perf_counter() - started, time.process_time() - worked
        answers.close()
    ideal = in_flight / LATENCY
    return {
        "in_flight": in_flight,
        "requests": tally.requests,
        "requests_a_second": round(tally.requests / seconds, 1),
        "ideal": ideal,
        "share_of_ideal": round(tally.requests / seconds / ideal, 3),
        "cpu_ms_a_request": round(1000 * worked / tally.requests, 2),
    }


def measure(requests: int) -> dict[str, object]:
    """Both measurements."""
    from penumbra.tasks.negatives.filling import Filling

    with ProtocolServer(latency=LATENCY, log=None) as server:
        runs = [throughput(server.openai_url, in_flight, requests) for in_flight in IN_FLIGHT]
    return {"throughput": runs, "tokens": tokens_a_query(requests, Filling().queries_a_request)}


def main(arguments: Iterable[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    options = parser.parse_args(None if arguments is None else list(arguments))
    os.environ.setdefault("OPENAI_API_KEY", "sk-bench")
    sys.stdout.write(json.dumps(measure(options.requests), indent=1) + "\n")


if __name__ == "__main__":
    main()
