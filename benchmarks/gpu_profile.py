"""Where the device's time goes in one pass: python benchmarks/gpu_profile.py CHECKPOINT [--contents 18] [--tokens 470] …

Runs random contents with random branches through the model of a checkpoint and prints the pass's wall time, its time on the
device, and what each kind of kernel takes of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from spinf_gemma4.stack import load
from spinf_quant_fp8s.scheme import Row, Static
from torch.profiler import ProfilerActivity, profile

from spinf_core.compiler.jobs import Part, split
from spinf_core.engine.loading import STEPS
from spinf_core.engine.probes import Probe
from spinf_core.engine.scorer import Scorer
from spinf_core.engine.sizes import Sizes
from spinf_core.quant.int8 import Int8
from spinf_core.quant.interface import Scheme
from spinf_core.quant.unquantized import Unquantized
from spinf_core.stack import LoadContext

CUDA = torch.device("cuda:0")
KINDS = {
    "attention": ("_attend",),
    "norm, residual, quantize": ("_rms_norm", "_add_norm"),
    "heads: norm and rotary": ("_heads",),
    "gated activation": ("_gated",),
    "head: normaliser": ("_log_sum_exp",),
    "products": ("gemm", "nvjet", "cutlass", "xmma", "splitk"),
}


def scheme(name: str) -> Scheme:
    made: dict[str, Scheme] = {"fp8s": Static(None), "fp8row": Row()}
    if name in ("w8a16", "w8a8"):
        return Int8(name, CUDA)
    return made.get(name) or Unquantized(name)


def random_parts(contents: int, tokens: int, branches: int, stem: int, own: int, vocab: int, seed: int) -> list[Part]:
    """Jobs of random contents; every branch has `stem` tokens that all share and `own` of its own."""
    generator = np.random.default_rng(seed)
    parts = []
    for _ in range(contents):
        shared = generator.integers(0, vocab, stem).tolist()
        paths = [(*shared, *generator.integers(0, vocab, own).tolist()) for _ in range(branches)]
        job = Probe(tuple(generator.integers(0, vocab, tokens).tolist()), tuple(paths)).job()
        parts.append(next(split(job, job.rows)))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--scheme", default="fp8s")
    parser.add_argument("--contents", type=int, default=18)
    parser.add_argument("--tokens", type=int, default=470)
    parser.add_argument("--branches", type=int, default=56)
    parser.add_argument("--stem", type=int, default=1)
    parser.add_argument("--own", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    config = json.loads((arguments.checkpoint / "config.json").read_text())
    began = time.perf_counter()
    model = load(LoadContext(folder=arguments.checkpoint, config=config, device=CUDA, scheme=scheme(arguments.scheme)))
    torch.cuda.synchronize()
    print(f"loaded in {time.perf_counter() - began:.1f} s")
    scorer = Scorer(model, Sizes.up_to(16_384, 32_768, STEPS["cuda"]))
    shape = (arguments.contents, arguments.tokens, arguments.branches, arguments.stem, arguments.own, model.vocab_size)

    began = time.perf_counter()
    scorer.launch(random_parts(*shape, seed=0)).values()
    print(f"first pass {time.perf_counter() - began:.1f} s")
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    walls, launches, devices = [], [], []
    for repeat in range(arguments.repeats):
        parts = random_parts(*shape, seed=1 + repeat)
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        began = time.perf_counter()
        start.record()
        reading = scorer.launch(parts)
        launches.append(time.perf_counter() - began)
        stop.record()
        reading.values()
        walls.append(time.perf_counter() - began)
        devices.append(start.elapsed_time(stop))
    rows = sum(part.rows for part in parts)
    print(
        f"{rows} rows: wall {1000 * statistics.median(walls):.1f} ms, launched in {1000 * statistics.median(launches):.1f} ms, "
        f"device {statistics.median(devices):.1f} ms, {rows / statistics.median(walls):.0f} rows/s, "
        f"memory beyond the weights {(torch.cuda.max_memory_allocated() - held) / 2**30:.2f} GiB"
    )
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        scorer.launch(random_parts(*shape, seed=99)).values()
        torch.cuda.synchronize()
    spent: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    others: dict[str, float] = defaultdict(float)
    for event in profiled.key_averages():
        if not event.self_device_time_total:
            continue  # a call of the host
        kind = next((kind for kind, marks in KINDS.items() if any(mark in event.key for mark in marks)), "others")
        spent[kind] += event.self_device_time_total / 1000
        counts[kind] += event.count
        if kind == "others":
            others[event.key] += event.self_device_time_total / 1000
    for kind, milliseconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"  {kind:28} {milliseconds:8.2f} ms in {counts[kind]} launches")
    for name, milliseconds in sorted(others.items(), key=lambda item: -item[1])[:8]:
        print(f"      {name[:90]:90} {milliseconds:7.2f} ms")


if __name__ == "__main__":
    main()
