"""Random packs and answers, whole and edge on: what the evaluator is compared with the oracle on."""

from __future__ import annotations

import base64
import random
import struct
from typing import Any

from spinf_core.packs.microlayer import lock_of

Answers = dict[tuple[str, str | None], list[float]]


def random_pack(seed: int) -> dict[str, Any]:
    """A pack with every kind of read; about a quarter of the locks are broken."""
    r = random.Random(seed)
    queries = []
    for number in range(r.randint(1, 5)):
        query: dict[str, Any] = {
            "id": f"q{number}",
            "template": "\nIs it é?{?}",
            "options": [f" o{n}" for n in range(r.choice((2, 2, 3, 5)))],
        }
        if r.random() < 0.4:
            query |= {"template": "\nIs it {F}?{?}", "combinations": [{"F": f"f{n}"} for n in range(r.randint(1, 3))]}
        queries.append(query)
    names = [f"c{number}" for number in range(r.randint(1, 5))]
    reads = [_read(r, number, queries, name) for number, name in enumerate(names * r.choice((1, 2, 3)))]
    pack: dict[str, Any] = {
        "pack": "test/pack",
        "version": "0.1.0",
        "model": "toy",
        "media": ["text"],
        "answers": r.choice(("p", "logprob")),
        "contexts": {"plain": "Text:\n{X}\n"},
        "scoring": {"queries": queries},
        "reads": reads,
        "categories": {name: _category(r, name, names) for name in names},
    }
    pack["decision"] = _decision(r, names, [read["id"] for read in reads])
    micro = pack["decision"]["micro_layer"]
    micro["lock"] = lock_of(pack) if r.random() < 0.75 else "sha256:" + "0" * 64
    return pack


def _read(r: random.Random, number: int, queries: list[dict[str, Any]], category: str) -> dict[str, Any]:
    query = r.choice(queries)
    options = len(query["options"])
    kind = r.choice(("pair", "option", "any", "set"))
    read: dict[str, Any] = {"id": f"r{number}", "query": query["id"], "kind": kind, "category": category}
    read |= {"mean": r.uniform(-2, 2), "sd": r.uniform(0.2, 3), "view": r.choice("abc")}
    if "combinations" in query:
        read["F"] = r.choice(query["combinations"])["F"]
    if kind == "pair" and r.random() < 0.7:
        read["sign"] = r.choice((1, -1))
    if kind == "option":
        read |= {"option": r.randrange(options), "mu": r.uniform(-4, 0)}
    if kind in ("any", "set"):
        read["mu"] = [r.uniform(-4, 0) for _ in range(options)]
    if kind == "set":
        read["unsafe"] = r.sample(range(options), r.randint(1, options - 1))
    return read


def _category(r: random.Random, name: str, names: list[str]) -> dict[str, Any]:
    category: dict[str, Any] = {"label": name, "platt": [r.uniform(-1, 3), r.uniform(-2, 2)]}
    category["threshold"] = None if r.random() < 0.2 else r.uniform(0.1, 0.9)
    if r.random() < 0.5:
        values = sorted(r.choice((r.random(), 0.25, 0.5)) for _ in range(r.randint(1, 6)))
        category["normal_quantiles"] = {"levels": sorted(r.uniform(0, 100) for _ in values), "values": values}
    if r.random() < 0.4:
        category["aggregate"] = "views"
    if r.random() < 0.4:
        category["requires"] = r.sample([other for other in names if other != name], r.randint(0, min(2, len(names) - 1)))
    if r.random() < 0.2:
        category["decides"] = False
    return category


def _decision(r: random.Random, names: list[str], reads: list[str]) -> dict[str, Any]:
    hidden = r.choice((0, 0, 1, 3))
    possible = [f"c:{name}" for name in names] + [f"r:{read}" for read in reads]
    inputs = r.sample(possible, r.randint(1, len(possible)))
    count = len(inputs) * hidden + 2 * hidden + 2 if hidden else len(inputs) + 2
    weights = struct.pack(f"<{count}f", *(r.uniform(-1, 1) for _ in range(count)))
    decision: dict[str, Any] = {
        "mode": r.choice(("max", "per_category", "micro_layer", "micro_layer")),
        "max": {"threshold": r.uniform(0.2, 0.9)},
        "per_category": {},
        "micro_layer": {"inputs": inputs, "hidden": hidden, "dtype": "float32", "weights": base64.b64encode(weights).decode()},
    }
    if r.random() < 0.7:
        decision["fallback"] = r.choice(("max", "per_category"))
    if r.random() < 0.5:
        decision["critical"] = r.sample(names, r.randint(0, len(names)))
    return decision


def random_answers(seed: int, pack: dict[str, Any]) -> Answers:
    """An answer for each prompt, now and then with shares of zero, next to zero, or that do not sum to 1."""
    r = random.Random(seed)
    answers: Answers = {}
    for query in pack["scoring"]["queries"]:
        for combination in query.get("combinations", [{}]):
            shares = [r.choice((r.random(), r.random(), 0.0, 1e-12, 1e-8, 5e-7, 1.0)) for _ in query["options"]]
            total = sum(shares)
            if total and r.random() < 0.8:
                shares = [share / total for share in shares]
            answers[query["id"], combination.get("F")] = shares
    return answers


def random_override(seed: int, pack: dict[str, Any]) -> dict[str, Any]:
    """Some changes of the decision, as keyword arguments of the oracle."""
    r = random.Random(seed)
    names = list(pack["categories"])
    override: dict[str, Any] = {}
    if r.random() < 0.5:
        override["mode"] = r.choice(("max", "per_category", "micro_layer"))
    if r.random() < 0.4:
        override["threshold"] = r.uniform(0, 1)
    if r.random() < 0.4:
        override["thresholds"] = {name: r.choice((None, r.random())) for name in r.sample(names, r.randint(1, len(names)))}
    if r.random() < 0.4:
        override["critical"] = r.sample(names, r.randint(0, len(names)))
    return override
