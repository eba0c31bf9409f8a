"""spinf beside spinf-serve on one GPU, on the same synthetic checkpoint and requests, in one run.

    python benchmarks/gpu_reference.py BENCH_FOLDER CHECKPOINT [--parts library http growth scores] [--seconds 20]

BENCH_FOLDER holds `synth.py`, which builds the checkpoint and the requests, and `http_ref.py`, which puts load on a server;
spinf-serve, spinf-core, spinf-gemma4 and spinf-quant-fp8s must be installed. Each engine runs in a process of its own, one
after the other, with a cold kernel cache. Prints one table of medians and ratios, and with `scores` how far the two lie apart
and how far each is from the same weights in bfloat16: on a checkpoint of few layers, since many random ones amplify rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REPEATS = 5
REPEATS_OF_MANY = 3
ENGINES = ("reference", "ours")
UNQUANTIZED = "ours in bf16"
PARTS = ("library", "http", "growth", "scores")
READY_SECONDS = 180


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


def growth(synth: Any, tokenizer: Any) -> dict[str, list[dict[str, Any]]]:
    """One content and more and more questions; 56 questions and a longer and longer content."""
    text = synth.content(tokenizer, 470, 7)
    requests = {f"470 tokens × {count} questions": synth.request("synthetic", [text], count, False) for count in QUESTIONS}
    for tokens in TOKENS:
        requests[f"{tokens} tokens × 56 questions"] = synth.request("synthetic", [_long(synth, tokenizer, tokens)], 56, False)
    return {name: [request] for name, request in requests.items()}


QUESTIONS = (56, 125, 250, 500, 1000)
TOKENS = (1000, 2000, 4000, 8000, 16_000, 31_000)


def _long(synth: Any, tokenizer: Any, tokens: int) -> str:
    pieces = [synth.content(tokenizer, min(1000, tokens), 31 * number) for number in range(max(1, tokens // 1000))]
    return " ".join(pieces)


def timed(run: Callable[[dict[str, Any]], Any], requests: list[dict[str, Any]]) -> list[float]:
    """Seconds of each repeat, after two to warm up, or after one of many requests."""
    seconds = []
    warm_up, repeats = (2, REPEATS) if len(requests) == 1 else (1, REPEATS_OF_MANY)
    for _ in range(warm_up + repeats):
        began = time.perf_counter()
        for request in requests:
            response = run(request)
        seconds.append(time.perf_counter() - began)
    if len(requests) == 1:
        print(f"  the response's own: {response.get('timing')}", file=sys.stderr, flush=True)
    return seconds[warm_up:]


def logprobs(response: dict[str, Any]) -> Iterator[float]:
    for entry in response["results"]:
        for query in entry["queries"]:
            for combination in query["combinations"]:
                for option in combination["options"]:
                    yield option["logprob"]


def scores(engine: str, checkpoint: str) -> dict[str, list[float]]:
    """The log-probabilities that an engine gives, by workload."""
    import synth
    from transformers import AutoTokenizer

    run = reference(checkpoint)[0] if engine == "reference" else ours(checkpoint, "bf16" if engine == UNQUANTIZED else None)[0]
    requests = [*workloads(synth, AutoTokenizer.from_pretrained(checkpoint)).items()][:3]
    return {name: [value for request in some for value in logprobs(run(request))] for name, some in requests}


def worker(engine: str, checkpoint: str, parts: list[str], out: Path) -> None:
    """Write one engine's times, as a library, as they come in."""
    import synth
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    began = time.perf_counter()
    run, warm_up = (reference if engine == "reference" else ours)(checkpoint)
    found: dict[str, Any] = {"load and self-test": time.perf_counter() - began, "times": {}}
    began = time.perf_counter()
    warm_up()
    found["warm-up"] = time.perf_counter() - began
    weights = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    compared = workloads(synth, tokenizer) if "library" in parts else {}
    grown = growth(synth, tokenizer) if "growth" in parts and engine == "ours" else {}
    for name, requests in (compared | grown).items():
        found["times"][name] = seconds = timed(run, requests)
        if name in compared:  # longer contents make larger passes
            found["memory beyond the weights, GiB"] = (torch.cuda.max_memory_allocated() - weights) / 2**30
        out.write_text(json.dumps(found))
        print(f"{engine}: {name}: {statistics.median(seconds):.4f} s", file=sys.stderr, flush=True)


def ours(checkpoint: str, scheme: str | None = None) -> tuple[Callable[[dict[str, Any]], Any], Callable[[], None]]:
    """spinf as a library, in the scheme that it chooses or another."""
    from spinf_core.engine.engine import Engine
    from spinf_core.engine.warmup import warm_up
    from spinf_core.settings import load_settings

    began = time.perf_counter()

    def progress(line: str) -> None:
        print(f"  {time.perf_counter() - began:6.1f} s {line}", file=sys.stderr, flush=True)

    flags: dict[str, Any] = {"limits.max_content_tokens": 32_768}
    engine = Engine(
        checkpoint, settings=load_settings(flags if scheme is None else flags | {"engine.quant": scheme}), progress=progress
    )

    def run(request: dict[str, Any]) -> Any:
        return engine.score(request | {"model": None}).to_dict()

    return run, lambda: warm_up(engine.service.loaded, "full", progress)


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


def served(engine: str, bench: Path, checkpoint: str, seconds: float, cache: Path) -> dict[str, Any]:
    """One engine behind HTTP: seconds until ready, load of 64 clients, then a lone client."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = ["--host", "127.0.0.1", "--port", port, "--no-official-packs", "--no-media"]
    environment = os.environ | {"TRITON_CACHE_DIR": str(cache)}
    if engine == "reference":
        program = "from spinf_serve.cli import main; main()"
        options = ["--model-dir", checkpoint, "--quant", "fp8s", "--warmup", "short", "--queue", "64"]
        environment |= {"SPINF_SERVED_MODEL": "synthetic", "SPINF_MODEL_ID": "synthetic"}
        model = "synthetic"
    else:
        program = "import sys; from spinf_core.cli.main import main; sys.exit(main())"
        options = [checkpoint]
        model = checkpoint
    began = time.perf_counter()
    server = subprocess.Popen([sys.executable, "-c", program, "serve", *options, *common], env=environment, stdout=sys.stderr)
    try:
        url = f"http://127.0.0.1:{port}"
        while not _ready(url):
            if server.poll() is not None or time.perf_counter() - began > READY_SECONDS:
                raise SystemExit(f"{engine} did not become ready")
            time.sleep(0.2)
        ready = time.perf_counter() - began
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            command = [sys.executable, str(bench / "http_ref.py"), url, checkpoint, out.name, "64", str(seconds), model]
            subprocess.run(command, check=True, stdout=sys.stderr)
            return {"ready": ready, **json.loads(Path(out.name).read_text())}
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path)
    parser.add_argument("checkpoint")
    parser.add_argument("--parts", nargs="*", default=["library", "http"], choices=PARTS)
    parser.add_argument("--only", choices=ENGINES)
    parser.add_argument("--seconds", type=float, default=20, help="of load over HTTP")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        sys.path.insert(0, str(arguments.bench))
        engine, out = arguments.worker
        if arguments.parts == ["scores"]:
            Path(out).write_text(json.dumps(scores(engine, arguments.checkpoint)))
        else:
            worker(engine, arguments.checkpoint, arguments.parts, Path(out))
        return
    library: dict[str, Any] = {}
    http: dict[str, Any] = {}
    timed_parts = [part for part in ("library", "growth") if part in arguments.parts]
    for engine in [arguments.only] if arguments.only else ENGINES:
        with tempfile.TemporaryDirectory() as name:
            if timed_parts:
                library[engine] = apart(engine, arguments.bench, arguments.checkpoint, timed_parts, Path(name))
            if "http" in arguments.parts:
                cache = Path(name, "triton")
                http[engine] = served(engine, arguments.bench, arguments.checkpoint, arguments.seconds, cache)
    report(library, http)
    if "scores" in arguments.parts:
        found = {}
        for engine in (*ENGINES, UNQUANTIZED):
            with tempfile.TemporaryDirectory() as name:
                found[engine] = apart(engine, arguments.bench, arguments.checkpoint, ["scores"], Path(name))
        report_scores(found)


def apart(engine: str, bench: Path, checkpoint: str, parts: list[str], folder: Path) -> dict[str, Any]:
    """What a process of its own finds of an engine, with a kernel cache of its own; what it found by then if it stops early."""
    out = folder / "found"
    command = [sys.executable, __file__, str(bench), checkpoint, "--parts", *parts, "--worker", engine, str(out)]
    status = subprocess.run(command, env=os.environ | {"TRITON_CACHE_DIR": str(folder / "triton")}).returncode
    if not out.exists():
        raise SystemExit(f"{engine} found nothing: its process ended with status {status}")
    if status:
        print(f"{engine} stopped early, with status {status}; the table has what it found by then", file=sys.stderr)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def report_scores(found: dict[str, dict[str, list[float]]]) -> None:
    """How far log-probabilities lie apart, for each two of the engines."""
    print(f"{'difference in log-probability: largest, mean':54}{'both':>18}{'spinf-serve, bf16':>20}{'spinf, bf16':>20}")
    for name in found["ours"]:
        cells = ""
        for one, other in (ENGINES, ("reference", UNQUANTIZED), ("ours", UNQUANTIZED)):
            differences = [abs(a - b) for a, b in zip(found[one][name], found[other][name], strict=True)]
            cells += f"{f'{max(differences):.4f}, {statistics.mean(differences):.5f}':>20}"
        print(f"{name:54}{cells}")


def report(library: dict[str, Any], http: dict[str, Any]) -> None:
    """One table; a column of an engine that did not run is empty."""
    if not library and not http:
        return
    print(f"{'':54}{'spinf-serve':>12}{'spinf':>12}{'ratio':>8}")
    for name in library.get("ours", library.get("reference", {})).get("times", {}):
        times = {engine: found["times"][name] for engine, found in library.items() if name in found["times"]}
        row(name, {engine: statistics.median(seconds) for engine, seconds in times.items()}, "s")
    for name in ("load and self-test", "warm-up", "memory beyond the weights, GiB"):
        row(name, {engine: found[name] for engine, found in library.items() if name in found}, "")
    row("HTTP: start until ready", {engine: found["ready"] for engine, found in http.items()}, "s")
    loads = {engine: found["load"]["questions_per_s"] for engine, found in http.items()}
    row("HTTP: 64 clients, questions a second", loads, "/s", more=True)
    for name, kind, percentile in (("64 clients", "load", "50"), ("lone client", "lone", "50"), ("lone client", "lone", "5")):
        values = {engine: (found[kind]["ms"] or {}).get(percentile) for engine, found in http.items()}
        row(f"HTTP: {name}, percentile {percentile}", {k: v for k, v in values.items() if v}, "ms")


def row(name: str, values: dict[str, float], unit: str, *, more: bool = False) -> None:
    """One line; the ratio is above 1 where spinf is the better."""
    if not values:
        return
    cells = "".join(f"{f'{values[engine]:.4g} {unit}' if engine in values else '':>12}" for engine in ENGINES)
    ratio = ""
    if len(values) == 2:
        theirs, mine = (values[engine] for engine in ENGINES)
        ratio = f"{mine / theirs if more else theirs / mine:.2f}x"
    print(f"{name:54}{cells}{ratio:>8}")


if __name__ == "__main__":
    main()
