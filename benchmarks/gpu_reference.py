"""spinf beside spinf-serve on one GPU, on the same synthetic checkpoint and requests, in one run.

    python benchmarks/gpu_reference.py BENCH_FOLDER CHECKPOINT

BENCH_FOLDER holds `synth.py`, which builds the checkpoint and the requests; spinf-serve must be importable. Each engine runs
in a process of its own, one after the other. Prints one table of medians and ratios, and how far the scores of the two lie
apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REPEATS = 5


def workloads(synth: Any, tokenizer: Any) -> dict[str, list[dict[str, Any]]]:
    """Requests by workload; several requests of one are sent one after another."""
    long = [synth.content(tokenizer, 470, seed) for seed in range(24)]
    short = [synth.content(tokenizer, 100, 100 + seed) for seed in range(64)]
    return {
        "A · 24 × 470 tokens × 56, no floors": [synth.request("synthetic", long, 56, False)],
        "A2 · the same with floors": [synth.request("synthetic", long, 56, True)],
        "B3 · 64 × 100 tokens × 56 in one request": [synth.request("synthetic", short, 56, False)],
        "B · 64 requests of that, with floors, one by one": [synth.request("synthetic", [text], 56, True) for text in short],
        "one small request, 100 tokens × 56": [synth.request("synthetic", short[:1], 56, False)],
    }


def timed(run: Callable[[dict[str, Any]], Any], requests: list[dict[str, Any]]) -> tuple[list[float], list[Any]]:
    """Seconds of each repeat after one to warm up, and the last responses."""
    seconds = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        responses = [run(request) for request in requests]
        seconds.append(time.perf_counter() - began)
    return seconds[1:], responses


def logprobs(response: dict[str, Any]) -> Iterator[float]:
    for entry in response["results"]:
        for query in entry["queries"]:
            for combination in query["combinations"]:
                for option in combination["options"]:
                    yield option["logprob"]


def worker(engine: str, checkpoint: str) -> dict[str, Any]:
    """One engine's times and scores."""
    import synth
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    began = time.perf_counter()
    run, warm_up = (reference if engine == "reference" else ours)(checkpoint)
    found: dict[str, Any] = {"load": time.perf_counter() - began, "times": {}, "logprobs": {}}
    began = time.perf_counter()
    warm_up()
    found["warm-up"] = time.perf_counter() - began
    weights = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for name, requests in workloads(synth, tokenizer).items():
        seconds, responses = timed(run, requests)
        found["times"][name] = seconds
        found["logprobs"][name] = [value for response in responses for value in logprobs(response)]
        print(f"{engine}: {name}: {statistics.median(seconds):.3f} s", file=sys.stderr, flush=True)
    found["memory beyond the weights, GiB"] = (torch.cuda.max_memory_allocated() - weights) / 2**30
    return found


def ours(checkpoint: str) -> tuple[Callable[[dict[str, Any]], Any], Callable[[], None]]:
    """spinf as a library."""
    for part in (".", "plugins/gemma4", "plugins/quant-fp8s"):
        sys.path.insert(0, str(ROOT / part))
    import spinf_gemma4.plugin
    import spinf_quant_fp8s.plugin

    from spinf_core.engine.engine import Engine
    from spinf_core.engine.warmup import warm_up
    from spinf_core.plugins import discover

    plugins = discover(only=(), extra=[("gemma4", spinf_gemma4.plugin), ("fp8s", spinf_quant_fp8s.plugin)])
    engine = Engine(checkpoint, plugins=plugins, progress=lambda line: print(line, file=sys.stderr, flush=True))

    def run(request: dict[str, Any]) -> Any:
        return engine.score(request | {"model": None}).to_dict()

    return run, lambda: warm_up(engine.service.loaded, "full", lambda line: None)


def reference(checkpoint: str) -> tuple[Callable[[dict[str, Any]], Any], Callable[[], None]]:
    """spinf-serve as a library."""
    from spinf_serve import protocol
    from spinf_serve.config import EngineConfig
    from spinf_serve.service import ScoreService

    config = EngineConfig(
        served_model="synthetic", model_id="synthetic", model_dir=checkpoint, quant="fp8s", media=False, warmup="short"
    )
    service = ScoreService(config)
    service.load()

    def run(request: dict[str, Any]) -> Any:
        return service.score_request(protocol.ScoreRequest.model_validate(request))

    return run, service.warmup


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path)
    parser.add_argument("checkpoint")
    parser.add_argument("--only", choices=("ours", "reference"))
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        sys.path.insert(0, str(arguments.bench))
        engine, out = arguments.worker
        Path(out).write_text(json.dumps(worker(engine, arguments.checkpoint)))
        return
    found = {}
    for engine in [arguments.only] if arguments.only else ["reference", "ours"]:
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            command = [sys.executable, __file__, str(arguments.bench), arguments.checkpoint, "--worker", engine, out.name]
            subprocess.run(command, check=True)
            found[engine] = json.loads(Path(out.name).read_text())
    if len(found) == 2:
        report(found["reference"], found["ours"])


def report(theirs: dict[str, Any], mine: dict[str, Any]) -> None:
    print(f"{'':52} {'spinf-serve':>12} {'spinf':>9} {'ratio':>7}   largest, mean difference in log-probability")
    for name in theirs["times"]:
        a, b = (statistics.median(each["times"][name]) for each in (theirs, mine))
        gaps = [abs(x - y) for x, y in zip(theirs["logprobs"][name], mine["logprobs"][name], strict=True)]
        print(f"{name:52} {a:10.3f} s {b:7.3f} s {a / b:6.2f}x   {max(gaps):.4f}, {statistics.mean(gaps):.5f}")
    for name in ("load", "warm-up", "memory beyond the weights, GiB"):
        print(f"{name:52} {theirs[name]:10.2f}   {mine[name]:7.2f}   {theirs[name] / mine[name]:6.2f}x")


if __name__ == "__main__":
    main()
