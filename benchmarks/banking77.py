"""Topics of real messages with the embedded default model: how right, against chance and with floors, and how fast.

    python benchmarks/banking77.py PATH_TO_CSV

The file is one of the BANKING77 set (Casanueva et al. 2020, «Efficient intent detection with dual sentence encoders»; CC BY
4.0), with the columns `text` and `category`. Of its 77 intents five are asked about, as a user would who sorts messages into a
few trays.
The wording was chosen among seven on the data set's test file; measure with its training file.
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from pathlib import Path
from typing import Any

import attrs

from spinf_core.engine.engine import Engine
from spinf_core.protocol import ScoreResponse
from spinf_core.settings import load_settings

# intent -> the option that stands for it
TOPICS = {
    "card_arrival": " card delivery",
    "exchange_rate": " exchange rates",
    "lost_or_stolen_card": " a lost card",
    "pin_blocked": " a blocked PIN",
    "top_up_failed": " a failed top-up",
}
TEMPLATE = "\n\nThis message is about{?}"
SEED = 77


@attrs.frozen
class Message:
    """A message and the number of its topic."""

    text: str
    topic: int


def sample(path: Path, count: int) -> list[Message]:
    """Messages with one of the five intents, drawn with a fixed seed."""
    topics = list(TOPICS)
    with path.open(encoding="utf-8", newline="") as file:
        messages = [
            Message(row["text"], topics.index(row["category"])) for row in csv.DictReader(file) if row["category"] in TOPICS
        ]
    if len(messages) < count:
        raise SystemExit(f"{path} has {len(messages)} messages with these intents, {count} were asked for; try --count")
    return random.Random(SEED).sample(messages, count)


def body(messages: list[Message]) -> dict[str, Any]:
    """One request about some messages."""
    query = {"id": "topic", "template": TEMPLATE, "options": list(TOPICS.values())}
    inputs = [{"messages": [{"role": "user", "content": message.text}]} for message in messages]
    return {"inputs": inputs, "scoring": {"queries": [query]}}


@attrs.frozen
class Picks:
    """What was picked for one message: the likeliest option, and the one that gained most over its floor."""

    likeliest: int
    lifted: int


def picks(response: ScoreResponse) -> list[Picks]:
    """Of every message of a response."""
    found = []
    for result in response.results:
        options = result.queries[0].combinations[0].options
        numbers = range(len(options))
        lift = [option.p / (option.floor_p or 1.0) for option in options]
        found.append(Picks(max(numbers, key=lambda n: options[n].p), max(numbers, key=lift.__getitem__)))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, metavar="PATH_TO_CSV")
    parser.add_argument("--count", type=int, default=300, help="messages")
    parser.add_argument("--quant", nargs="+", default=["bf16", "fp32"], help="schemes, side by side")
    arguments = parser.parse_args()
    messages = sample(arguments.path, arguments.count)
    print(f"{len(messages)} messages, one question of {len(TOPICS)} options each; chance is {1 / len(TOPICS):.2f}")
    print("| sent as | scheme | seconds | questions/s | right, by p | right, by p / floor |\n|---|---|---|---|---|---|")
    for quant in arguments.quant:
        with Engine("smollm2-135m", settings=load_settings({"engine.quant": quant})) as engine:
            engine.score(body(messages[:20]))  # warm
            for name, bodies in (("one request", [body(messages)]), ("a request each", [body([each]) for each in messages])):
                began = time.perf_counter()
                responses = [engine.score(each) for each in bodies]
                seconds = time.perf_counter() - began
                found = [pick for response in responses for pick in picks(response)]
                right = sum(pick.likeliest == each.topic for pick, each in zip(found, messages, strict=True)) / len(messages)
                lifted = sum(pick.lifted == each.topic for pick, each in zip(found, messages, strict=True)) / len(messages)
                speed = f"{seconds:.2f} | {len(messages) / seconds:.0f}"
                print(f"| {name} | {quant} | {speed} | {right:.3f} | {lifted:.3f} |", flush=True)


if __name__ == "__main__":
    main()
