"""How fast Qwen3.5 is on a GPU, in the shape of the 27B: python tests/gpu/qwen_speed.py [--layers 8] [--schemes bf16] [--sweep]

Random weights, cut to a few layers: packed tokens a second, where the time goes, what states take, and that every bit is kept
at this shape too. Prints a table and exits 1 if anything failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from qwen import CUDA, SCHEMES, SIZES, Line, checked, every_bit, report
from spinf_qwen35 import mixer, stack
from torch import Tensor

from spinf_core.compiler.jobs import split
from spinf_core.engine.packing import lay_out
from spinf_core.engine.probes import Probe
from spinf_core.engine.sizes import Sizes
from spinf_core.nn.kernels import tree_delta as kernels
from spinf_core.nn.layout import TreeLayout
from spinf_core.nn.walks import RecurrencePlan
from spinf_core.stack import LoadContext, Pass
from spinf_core.testing import conformance
from spinf_core.testing.toy import toy_backend

LARGE: dict[str, Any] = {  # the 27B, but for the number of layers
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "hidden_size": 5120,
    "intermediate_size": 17_408,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 262_144,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
WHOLE = {"linear_attention": 48, "full_attention": 16}  # layers of the 27B


class RandomWeights:
    """Stands in for a checkpoint: each tensor is made on the device when it is asked for."""

    def __init__(self) -> None:
        self._generator = torch.Generator(CUDA).manual_seed(0)

    def has(self, name: str) -> bool:
        return name.endswith(".weight") and ".language_model." not in name

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> Tensor:
        noise = torch.randn(shape, generator=self._generator, device=CUDA, dtype=torch.bfloat16)
        if name.endswith("linear_attn.norm.weight"):
            return (1 + 0.1 * noise).to(dtype)
        if "norm" in name or name.endswith("A_log"):
            return (0.1 * noise).to(dtype)
        return (noise * (0.5 if "conv1d" in name else shape[-1] ** -0.5)).to(dtype)

    def skip(self, pattern: str, why: str) -> None:
        pass

    def finish(self) -> None:
        pass


def large_model(scheme: str, layers: int) -> stack.Qwen35:
    with tempfile.TemporaryDirectory() as name:
        toy_backend().save(f"{name}/tokenizer.json")
        config = LARGE | {"num_hidden_layers": layers}
        context = LoadContext(folder=Path(name), config=config, device=CUDA, scheme=SCHEMES[scheme]())
        return stack.Qwen35(context, RandomWeights())  # type: ignore[arg-type]


def workload(contents: int, vocab: int, seed: int) -> Pass:
    """Contents of 470 tokens with a stem of 8 and 56 questions of 7 tokens each."""
    generator = np.random.default_rng(seed)
    jobs = []
    for _ in range(contents):
        stem = generator.integers(0, vocab, 8).tolist()
        branches = tuple((*stem, *generator.integers(0, vocab, 7).tolist()) for _ in range(56))
        jobs.append(Probe(tuple(generator.integers(0, vocab, 470).tolist()), branches).job())
    return lay_out([next(split(job, job.rows)) for job in jobs], SIZES, 3).pass_


class Clock:
    """Device time of calls, by label."""

    def __init__(self) -> None:
        self._events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = defaultdict(list)

    def timed(self, label: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **named: Any) -> Any:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            result = call(*args, **named)
            end.record()
            self._events[label].append((begin, end))
            return result

        return run

    def milliseconds(self) -> dict[str, float]:
        torch.cuda.synchronize()
        return {label: sum(a.elapsed_time(b) for a, b in pairs) for label, pairs in self._events.items()}


@torch.inference_mode()
def where_time_goes(model: stack.Qwen35, pass_: Pass) -> dict[str, float]:
    """Milliseconds of one pass by label."""
    clock, blocks = Clock(), model.blocks
    saved = stack.tree_delta, stack.tree_attention, mixer.convolve, mixer.GatedRMSNorm.__call__

    class Timed:
        def __init__(self, block: stack.Block) -> None:
            self.kind, self.mixer_norm, self.run = block.kind, block.mixer_norm, clock.timed(block.kind, block)

        def __call__(self, *args: Any) -> Any:
            return self.run(*args)

    try:
        stack.tree_delta = lambda layout, keep: clock.timed("recurrence", saved[0](layout, keep))  # type: ignore[assignment]
        stack.tree_attention = lambda layout: clock.timed("attention", saved[1](layout))
        mixer.convolve = clock.timed("convolution", saved[2])
        mixer.GatedRMSNorm.__call__ = clock.timed("gated norm", saved[3])  # type: ignore[method-assign]
        model.blocks = [Timed(block) for block in blocks]  # type: ignore[misc]
        clock.timed("pass", model.forward)(pass_)
        return clock.milliseconds()
    finally:
        stack.tree_delta, stack.tree_attention, mixer.convolve = saved[:3]
        mixer.GatedRMSNorm.__call__ = saved[3]  # type: ignore[method-assign]
        model.blocks = blocks


@torch.inference_mode()
def pass_seconds(model: stack.Qwen35, passes: list[Pass]) -> float:
    """Median wall time of a pass, host work included."""
    seconds = []
    for pass_ in passes:
        torch.cuda.synchronize()
        began = time.perf_counter()
        model.forward(pass_)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def large(scheme: str, layers: int) -> Iterator[Line]:
    began = time.perf_counter()
    model = large_model(scheme, layers)
    what = f"27B shape, {layers} layers, {scheme}"
    held = torch.cuda.memory_allocated() / 2**30
    yield f"{what}: weights", f"{held:.1f} GiB in {time.perf_counter() - began:.1f} s"
    passes = [workload(18, 50_000, seed) for seed in range(7)]
    began = time.perf_counter()
    pass_seconds(model, passes[:1])
    yield f"{what}: first pass, kernels compiled", f"{time.perf_counter() - began:.1f} s"
    torch.cuda.reset_peak_memory_stats()
    seconds = pass_seconds(model, passes[1:])
    peak = torch.cuda.max_memory_allocated() / 2**30 - held
    rows = int((passes[0].job >= 0).sum())
    speed = f"{rows:,} rows in {1e3 * seconds:.1f} ms, {rows / seconds:,.0f} packed tokens/s"
    yield f"{what}: a pass", f"{speed}, {peak:.2f} GiB beyond the weights"
    found = where_time_goes(model, passes[1])
    for label, spent in found.items():
        yield f"    {label}", f"{spent:8.2f} ms  {100 * spent / found['pass']:5.1f} %"
    kinds = [block.kind for block in model.blocks]
    each = {kind: found[kind] / kinds.count(kind) for kind in WHOLE if kind in kinds}
    rest = found["pass"] - sum(found[kind] for kind in each)
    whole = rest + sum(WHOLE[kind] * spent for kind, spent in each.items())
    recurrence = WHOLE["linear_attention"] * found["recurrence"] / kinds.count("linear_attention")
    share = recurrence / whole
    yield (
        f"{what}: as 64 layers",
        f"{whole:.0f} ms, {1e3 * rows / whole:,.0f} packed tokens/s; recurrence {100 * share:.1f} %"
        + (" (aim: below 15)" if share < 0.15 else " MISSES the aim of 15"),
    )
    yield from state_memory(model)
    yield checked(f"{what}: past", partial(conformance.check_past, model))
    yield checked(f"{what}: every bit kept", partial(every_bit, model, Sizes.up_to(1024)))


@torch.inference_mode()
def state_memory(model: stack.Qwen35) -> Iterator[Line]:
    """What a layer holds for 24 contents of 56 questions while it runs, and what a kept row takes."""
    c, pass_ = model.config, workload(24, 50_000, 0)
    plan = RecurrencePlan.build(TreeLayout.build(pass_, None, torch.device("cpu")))
    one = 4 * c.value_heads * c.key_dim * c.value_dim
    walked = sum(len(level.start) for level in plan.levels)
    held, each = (count * one / 2**30 for count in (plan.states, walked))
    verdict = f"{plan.states} held, {held:.2f} GiB; one for each of {walked} walks would be {each:.2f} GiB"
    yield "states of a layer for 24 × 56 branches", verdict
    _, state = model.forward(workload(1, 50_000, 0), keep=[469])
    assert state is not None
    yield f"state kept behind 470 tokens, {len(model.blocks)} layers", f"{state.bytes / 2**20:.1f} MiB"


def sweep() -> Iterator[Line]:
    """The recurrence of one layer of the 27B under other tile sizes; the kernels' own come first."""
    pass_ = workload(18, 50_000, 0)
    plan = RecurrencePlan.build(TreeLayout.build(pass_, None, torch.device("cpu")))
    generator = torch.Generator(CUDA).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(pass_.rows, *shape, generator=generator, device=CUDA)

    q, k = (torch.nn.functional.normalize(draw(16, 128), dim=-1) for _ in range(2))
    terms = (q, k, draw(48, 128), -draw(48).exp(), torch.sigmoid(draw(48)))
    names = ("PREPARE_PART", "PREPARE_WARPS", "SCAN_COLUMNS", "SCAN_PART", "SCAN_WARPS", "WALK_COLUMNS", "WALK_WARPS")
    own = {name: getattr(kernels, name) for name in names}
    tried: list[dict[str, int]] = [{}, {"PREPARE_WARPS": 2}, {"PREPARE_PART": 16, "PREPARE_WARPS": 2}, {"PREPARE_PART": 64}]
    tried += [{"PREPARE_WARPS": 8}, {"SCAN_PART": 64}, {"SCAN_PART": 16}, {"SCAN_COLUMNS": 128, "SCAN_WARPS": 8}]
    tried += [{"SCAN_COLUMNS": 32, "SCAN_PART": 64}, {"WALK_COLUMNS": 16, "WALK_WARPS": 1}]
    for change in tried:
        for name, value in (own | change).items():
            setattr(kernels, name, value)
        run = kernels.TritonTreeDelta(plan, CUDA)
        for _ in range(2):
            run(*terms)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(3):
                run(*terms)
            torch.cuda.synchronize()
        spent = {event.key: event.device_time_total / 3e3 for event in profile.key_averages()}
        each = ", ".join(f"{name} {spent[name]:.3f}" for name in ("prepare_chunks", "scan_contents", "walk_paths"))
        yield f"sweep {change or own}", f"{sum(spent.values()):.3f} ms a layer ({each})"
    for name, value in own.items():
        setattr(kernels, name, value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8, help="of the model")
    parser.add_argument("--schemes", default="bf16", help="with commas between them")
    parser.add_argument("--sweep", action="store_true", help="only time the recurrence under other tile sizes")
    arguments = parser.parse_args()
    return report(
        [sweep()] if arguments.sweep else [large(scheme, arguments.layers) for scheme in arguments.schemes.split(",")]
    )


if __name__ == "__main__":
    sys.exit(main())
