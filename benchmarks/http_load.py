"""Load on an HTTP server: clients that ask the same questions about contents of their own, each as soon as it has its answer.

    python benchmarks/http_load.py --url http://127.0.0.1:8000 --clients 64
    python benchmarks/http_load.py --openai http://127.0.0.1:8001 --model NAME --clients 64

`--url` is a server of the scoring API: one request asks all questions about one content. `--openai` is a server of
OpenAI-style completions, such as vLLM's or llama.cpp's: a client puts the same questions one after another, each a prompt of
the content and the filled template, with one token and its log-probabilities, so that the server may reuse what it cached of
the content. Floors are the templates without a content; such a client asks each of them once and keeps the answer.

Contents are distinct random words of one token each in the usual vocabularies. Prints one row of a table.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import attrs
import httpx

_COMMON = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power
hour game line end member law car city name team minute idea body back parent face level office door health person art
war history party result change morning reason research girl moment air teacher force education
"""
WORDS = _COMMON.split()
OPTIONS = (" yes", " no")


@attrs.frozen
class Load:
    """What is asked.

    Attributes:
        tokens: of each content. questions: about each. floors: whether each question is also asked without the content.
        model: named in each request; None: the server's own.
    """

    tokens: int
    questions: int
    floors: bool
    model: str | None

    def templates(self) -> list[str]:
        """The questions without their slot."""
        return [
            f"\n\nIs this about the {WORDS[number % len(WORDS)]}{number // len(WORDS) or ''}?\nAnswer:"
            for number in range(self.questions)
        ]

    def contents(self, seed: int) -> Iterator[str]:
        """Contents that no other seed gives."""
        generator = random.Random(seed)
        while True:
            yield " ".join(generator.choices(WORDS, k=self.tokens))


@attrs.frozen
class Answer:
    """One content's questions answered: when, how long it took, and the tokens that it cost the server."""

    at: float
    seconds: float
    tokens: int
    content_tokens: int


Ask = Callable[[httpx.AsyncClient, str], Awaitable[tuple[int, int]]]
"""Asks all questions about a content; the tokens it cost, and the content's own."""


def scoring_api(load: Load) -> Ask:
    """One request per content."""
    queries = [
        {"id": str(number), "template": template + "{?}", "options": OPTIONS}
        for number, template in enumerate(load.templates())
    ]
    scoring = {"queries": queries, "empty_floor": load.floors}

    async def ask(client: httpx.AsyncClient, content: str) -> tuple[int, int]:
        body = {"messages": [{"role": "user", "content": content}], "scoring": scoring}
        usage = (await _post(client, "/v1/score", body | ({"model": load.model} if load.model else {})))["usage"]
        return usage["processed_tokens"], usage["content"]["tokens"]

    return ask


def completions(load: Load) -> Ask:
    """One request per question, the content's first."""
    floors: set[str] = set()

    async def ask(client: httpx.AsyncClient, content: str) -> tuple[int, int]:
        tokens = 0
        for template in load.templates():
            prompts = [content + template]
            if load.floors and template not in floors:
                floors.add(template)
                prompts.append(template)
            for prompt in prompts:
                body = {"prompt": prompt, "max_tokens": 1, "logprobs": 5, "temperature": 0}
                usage = (await _post(client, "/v1/completions", body | ({"model": load.model} if load.model else {})))["usage"]
                cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                tokens += usage["prompt_tokens"] - cached
        return tokens, load.tokens

    return ask


async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(path, json=body)
    response.raise_for_status()
    found: dict[str, Any] = response.json()
    return found


async def run(
    url: str, ask: Ask, load: Load, clients: int, seconds: float, warm_up: float, seed: int, token: str | None
) -> str:
    """Load a server for a time; the table."""
    answers: list[Answer] = []
    errors: Counter[str] = Counter()
    began = time.perf_counter()
    stop = began + warm_up + seconds

    async def client_loop(client: httpx.AsyncClient, number: int) -> None:
        for content in load.contents(seed * 100_003 + number):
            sent = time.perf_counter()
            try:
                tokens, content_tokens = await ask(client, content)
            except (httpx.HTTPError, KeyError, ValueError) as error:
                if time.perf_counter() > began + warm_up:
                    errors[_kind(error)] += 1
                await asyncio.sleep(0.1)
            else:
                now = time.perf_counter()
                answers.append(Answer(now, now - sent, tokens, content_tokens))

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=seconds + warm_up + 60, limits=limits) as client:
        tasks = [asyncio.create_task(client_loop(client, number)) for number in range(clients)]
        await asyncio.sleep(stop - time.perf_counter())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return table([answer for answer in answers if began + warm_up <= answer.at <= stop], errors, load, clients, seconds)


def _kind(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return str(error.response.status_code)
    return type(error).__name__


def table(answers: list[Answer], errors: Counter[str], load: Load, clients: int, seconds: float) -> str:
    """One row, in Markdown."""
    latencies = sorted(1000 * answer.seconds for answer in answers)
    cells = {
        "clients": str(clients),
        "content tokens": f"{statistics.mean(answer.content_tokens for answer in answers):.0f}"
        if answers
        else str(load.tokens),
        "questions": str(load.questions),
        "floors": "on" if load.floors else "off",
        "requests/s": f"{len(answers) / seconds:.2f}",
        "questions/s": f"{len(answers) * load.questions / seconds:.1f}",
        "packed tokens/s": f"{sum(answer.tokens for answer in answers) / seconds:.0f}",
        **{f"p{percent} ms": f"{_percentile(latencies, percent):.0f}" for percent in (50, 90, 99)},
        "errors": ", ".join(f"{count} × {kind}" for kind, count in sorted(errors.items())) or "0",
    }
    rows = (cells.keys(), ["---"] * len(cells), cells.values())
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _percentile(values: list[float], percent: int) -> float:
    """By nearest rank; NaN of nothing."""
    return values[max(0, -(-len(values) * percent // 100) - 1)] if values else float("nan")


def main() -> None:
    """Load a server and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="base URL of a server of the scoring API")
    where.add_argument("--openai", metavar="URL", help="base URL of a server of OpenAI-style completions, without /v1")
    parser.add_argument("--clients", type=int, default=64, help="that ask at the same time (default %(default)s)")
    parser.add_argument("--content-tokens", type=int, default=100, help="of each content (default %(default)s)")
    parser.add_argument("--questions", type=int, default=8, help="about each content (default %(default)s)")
    parser.add_argument("--no-floors", action="store_true", help="leave out the questions without a content")
    parser.add_argument("--seconds", type=float, default=20, help="that are counted (default %(default)s)")
    parser.add_argument("--warm-up", type=float, default=5, help="seconds before, not counted (default %(default)s)")
    parser.add_argument("--model", help="to name in each request")
    parser.add_argument("--token", help="to send as bearer")
    parser.add_argument("--seed", type=int, default=1, help="another one gives other contents (default %(default)s)")
    given = parser.parse_args()
    load = Load(given.content_tokens, given.questions, not given.no_floors, given.model)
    ask = scoring_api(load) if given.url else completions(load)
    url = (given.url or given.openai).rstrip("/")
    print(asyncio.run(run(url, ask, load, given.clients, given.seconds, given.warm_up, given.seed, given.token)))


if __name__ == "__main__":
    main()
