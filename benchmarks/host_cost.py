"""What the host does for 10,000 distinct questions of 20 tokens on one content, on one core: everything but the model.

    TOKENIZERS_PARALLELISM=false taskset -c 0 python benchmarks/host_cost.py

Two sets of questions: `alike` ones share an opening and an ending, as a form's do; `unlike` ones have a first word, a last word
before the slot and words between of their own, so that nothing of one question's tokenization serves another.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from spinf_core.checkpoints import resolve
from spinf_core.compiler.compile import Compiler
from spinf_core.compiler.jobs import Part
from spinf_core.engine.loading import DEFAULT_ROWS
from spinf_core.engine.packing import lay_out
from spinf_core.engine.request import Ticket
from spinf_core.engine.results import response
from spinf_core.engine.sizes import Sizes
from spinf_core.plugins import discover, load_factory
from spinf_core.protocol import parse_request
from spinf_core.tokenizer import Tokenizer

COUNT = 10_000
TOKENS = 20
CONTENT = (
    "The parcel was promised for the third of May and came on the twentieth, with one of the four chairs broken. I wrote to "
    "your support twice and was told, both times, that someone would call me back within two working days; nobody has. I would "
    "like the broken chair replaced and the delivery fee of 49.90 paid back. My order number is 77-10482, and the best time to "
    "reach me is after six in the evening."
)

T = TypeVar("T")


def default_tokenizer() -> Tokenizer:
    """The tokenizer of the embedded default model, fetched on the first run."""
    plugins = discover()
    manifest = plugins.model("smollm2-135m").record
    stack = plugins.stack_of_family(manifest.family)
    return Tokenizer.from_folder(resolve(manifest, convert=load_factory(stack, stack.record.convert)).folder)


def templates(tokenizer: Tokenizer, kind: str, count: int = COUNT) -> list[str]:
    """Distinct templates of about `TOKENS` tokens, without their slot."""
    pieces = (tokenizer.decode([number]) for number in range(tokenizer.vocab_size))
    words = [piece for piece in pieces if piece[0] == " " and piece[1:].isascii() and piece[1:].isalpha() and len(piece) > 3]
    common = words[:2000]  # a vocabulary begins with the commonest pieces
    generator = random.Random(kind)
    if kind == "alike":
        opening, ending = "\n\nDoes the customer mention", "?\nAnswer:"
        between = TOKENS - len(tokenizer.encode(opening)) - len(tokenizer.encode(ending))
        return [opening + "".join(generator.sample(common, between)) + ending for _ in range(count)]
    firsts, lasts = generator.sample(words, count), generator.sample(words, count)
    made = []
    for first, last in zip(firsts, lasts, strict=True):
        opening = first[1:].capitalize()
        between = TOKENS - len(tokenizer.encode(opening)) - 1
        made.append(opening + "".join(generator.sample(common, between)) + last)
    return made


def body(texts: list[str], floors: bool) -> dict[str, Any]:
    """The request, as `json.loads` would give it."""
    queries = [{"id": f"q{number}", "template": text + "{?}", "options": [" yes", " no"]} for number, text in enumerate(texts)]
    return {"messages": [{"role": "user", "content": CONTENT}], "scoring": {"queries": queries, "empty_floor": floors}}


class Stopwatch:
    """CPU seconds by stage, which other processes of the machine disturb less than they do the clock on the wall."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, call: Callable[[], T]) -> T:
        """Run `call` and note its time."""
        began = time.process_time()
        result = call()
        self.seconds[stage] = time.process_time() - began
        return result


def measure(tokenizer: Tokenizer, request: dict[str, Any]) -> dict[str, float]:
    """Seconds of each stage of one request."""
    watch = Stopwatch()
    budget, max_rows = DEFAULT_ROWS["cpu"]
    sizes = Sizes.up_to(budget, max_rows)
    compiler = Compiler(tokenizer, max_rows)
    ticket = Ticket("benchmark")
    ticket.parsed = parsed = watch("parse", lambda: parse_request(request))
    compiled = watch("compile", lambda: compiler.compile(parsed))

    def hand_over() -> None:
        ticket.begin(compiled.floors, list(range(len(compiled.floors))), len(compiled.inputs), budget, max_rows)
        for entry in compiled.inputs:
            ticket.add(entry)

    watch("jobs", hand_over)
    parts: list[Part] = []

    def assemble() -> None:
        while ticket.peek() is not None:
            parts.append(ticket.take())
            lay_out(parts[-1:], sizes)

    watch("passes", assemble)
    values = [np.log(np.random.default_rng(0).uniform(0.01, 0.1, len(part.pairs))) for part in parts]

    def fill() -> None:
        for part, read in zip(parts, values, strict=True):
            ticket.fill(part, read)

    watch("scores", fill)
    watch("response", lambda: response(ticket, "benchmark", "fp_0"))
    return watch.seconds


BEFORE_THE_MODEL = ("parse", "compile", "jobs", "passes")
BEHIND_THE_MODEL = ("scores", "response")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="medians of this many runs")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    tokenizer = default_tokenizer()
    stages = (*BEFORE_THE_MODEL, "before the model", *BEHIND_THE_MODEL, "behind it")
    print(f"CPU seconds for {COUNT:,} questions, medians of {repeats}")
    print("| questions | floors | encoding alone | " + " | ".join(stages) + " |")
    print("|---" * (3 + len(stages)) + "|")
    for kind in ("alike", "unlike"):
        texts = templates(tokenizer, kind)
        encoding = []
        for _ in range(repeats):
            began = time.process_time()
            tokenizer.encode_batch(texts)
            encoding.append(time.process_time() - began)
        for floors in (False, True):
            request = body(texts, floors)
            runs = [measure(tokenizer, request) for _ in range(repeats)]
            for run in runs:
                run["before the model"] = sum(run.get(stage, 0.0) for stage in BEFORE_THE_MODEL)
                run["behind it"] = sum(run[stage] for stage in BEHIND_THE_MODEL)
            shown = [f"{statistics.median(run.get(stage, 0.0) for run in runs):.3f}" for stage in stages]
            print(f"| {kind} | {'on' if floors else 'off'} | {statistics.median(encoding):.3f} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main()
