"""What must hold of Qwen3.5 on a GPU, and how fast it is: python tests/gpu/qwen.py [--skip PART …] [--layers 8] [--sweep]

Prints a table and exits 1 if anything failed. Parts: `small` (tiny checkpoints against transformers, the conformance suite,
every scheme's invariance), `kernels` (the gated delta kernels against plain torch at full width), `large` (random weights of
the 27B's shape cut to a few layers: invariance, kept states, memory, and where the time goes).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
for part in (".", "plugins/qwen35", "plugins/qwen35/tests", "plugins/quant-fp8s"):
    sys.path.insert(0, str(ROOT / part))

import tiny_qwen as tiny  # noqa: E402
from spinf_quant_fp8s.scheme import Row  # noqa: E402
from spinf_qwen35 import mixer, stack  # noqa: E402

from spinf_core.compiler.jobs import split  # noqa: E402
from spinf_core.engine.packing import lay_out  # noqa: E402
from spinf_core.engine.probes import Probe, random_probe, run_probes  # noqa: E402
from spinf_core.engine.selftest import compare_packed, compare_split, self_test  # noqa: E402
from spinf_core.engine.sizes import Sizes  # noqa: E402
from spinf_core.nn.delta import TorchTreeDelta  # noqa: E402
from spinf_core.nn.kernels import delta as kernels  # noqa: E402
from spinf_core.nn.layout import TreeLayout  # noqa: E402
from spinf_core.nn.walks import RecurrencePlan  # noqa: E402
from spinf_core.quant.int8 import Int8  # noqa: E402
from spinf_core.quant.interface import Scheme  # noqa: E402
from spinf_core.quant.unquantized import Unquantized  # noqa: E402
from spinf_core.stack import LoadContext, Pass  # noqa: E402
from spinf_core.testing import conformance  # noqa: E402
from spinf_core.testing.toy import toy_backend  # noqa: E402

CUDA = torch.device("cuda:0")
SCHEMES: dict[str, Callable[[], Scheme]] = {
    "fp32": lambda: Unquantized("fp32"),
    "bf16": lambda: Unquantized("bf16"),
    "w8a16": lambda: Int8("w8a16", CUDA),
    "w8a8": lambda: Int8("w8a8", CUDA),
    "fp8row": Row,
}
SIZES = Sizes.up_to(16_384, 32_768)
SMALL = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "linear_key_head_dim": 32, "linear_value_head_dim": 64}
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
Line = tuple[str, str]


def load_model(folder: Path, scheme: str) -> stack.Qwen35:
    config = json.loads((folder / "config.json").read_text())
    return stack.load(LoadContext(folder=folder, config=config, device=CUDA, scheme=SCHEMES[scheme]()))


def checked(what: str, run: Callable[[], object]) -> Line:
    try:
        return what, str(run() or "ok")
    except Exception as error:  # the other checks are worth their time on the machine still
        return what, f"FAILED {type(error).__name__}: {error}"[:300]


# Small


def small() -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as name:
        for variant in tiny.VARIANTS:
            model = tiny.make(variant)
            folder = tiny.save(model, Path(name, variant))
            oracle = tiny.oracle_of(model.to(CUDA), "cuda")
            for scheme, tolerance in (("fp32", 1e-4), ("bf16", 5e-2)):
                if (variant, scheme) == ("tied", "bf16"):
                    continue  # its logits are spread so far that bfloat16 is coarse for anyone
                ours = load_model(folder, scheme)
                for check in ("contract", "odd_passes", "invariance", "past"):
                    yield checked(f"{variant} {scheme}: {check}", partial(getattr(conformance, f"check_{check}"), ours))
                run = partial(conformance.check_oracle, ours, oracle, tolerance)
                yield checked(f"{variant} {scheme}: transformers", run)
        folder = tiny.save(tiny.make("text", **SMALL), Path(name, "wider"))
        for scheme in SCHEMES:
            ours = load_model(folder, scheme)
            yield checked(f"wider {scheme}: past", partial(conformance.check_past, ours))
            yield checked(f"wider {scheme}: every bit kept", partial(every_bit, ours, Sizes.up_to(4096)))
            if scheme not in ("bf16", "w8a16"):
                continue
            digest = self_test(ours, Sizes.up_to(1024)).digest
            command = [sys.executable, __file__, "--digest", str(folder), scheme]
            again = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            yield f"wider {scheme}: a fresh process", "ok" if again == digest else f"FAILED {again} is not {digest}"


@torch.inference_mode()
def every_bit(model: stack.Qwen35, sizes: Sizes) -> str:
    generator = np.random.default_rng(7)
    contents = (1, 3, 63, 64, 65, 129, 470, 1025)
    probes = [random_probe(generator, model.vocab_size, content, 12, 40) for content in contents]
    probes += [random_probe(generator, model.vocab_size, 20, 200, 8), random_probe(generator, model.vocab_size, 0, 40, 40)]
    tested = self_test(model, sizes)
    alone = [run_probes(model, [probe], SIZES)[0] for probe in probes]
    problems = [*tested.failures, *compare_packed(model, probes, alone, SIZES)]
    for number, (probe, rows) in enumerate(zip(probes, alone, strict=True)):
        problems += compare_split(model, number, probe, rows, SIZES)
    assert not problems, "; ".join(problems[:4])
    assert all(torch.isfinite(rows).all() for rows in alone), "a hidden row is not finite"
    return f"ok (self-test {tested.seconds:.1f} s)"


# Kernels


def terms_of(rows: int, device: torch.device) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    heads, key_heads = 6, 2

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    q, k = (torch.nn.functional.normalize(draw(rows, key_heads, 128) + 0.5, dim=-1) for _ in range(2))
    gates = draw(2, rows, heads)
    made = (q * 128**-0.5, k, draw(rows, heads, 128), -torch.exp(2 * gates[0] - 3), torch.sigmoid(gates[1]))
    return tuple(term.to(device) for term in made)


def full_width() -> Iterator[Line]:
    """Against plain torch in float32 at heads of 128, keys that resemble one another, decays fast and slow."""
    generator = np.random.default_rng(1)
    jobs = [random_probe(generator, 50, content, 8, 30).job() for content in (1, 64, 65, 470, 0)]
    pass_ = lay_out([next(split(job, job.rows)) for job in jobs], SIZES).pass_
    keep = [int(pass_.segments[3, 0]) + 127, int(pass_.segments[3, 2]) - 1]
    plan = RecurrencePlan.build(TreeLayout.build(pass_, None, torch.device("cpu")), keep)
    expected, expected_kept = TorchTreeDelta(plan)(*terms_of(pass_.rows, torch.device("cpu")))
    found, kept = kernels.TritonTreeDelta(plan, CUDA)(*terms_of(pass_.rows, CUDA))
    assert kept is not None
    assert expected_kept is not None
    for what, ours, theirs in (("outputs", found, expected), ("states", kept, expected_kept)):
        error = ((ours.cpu() - theirs).abs().max() / theirs.abs().max()).item()
        verdict = "ok" if error < 1e-5 else "FAILED"
        yield f"kernels: {what} against torch", f"{verdict} (largest error {error:.1e} of the largest)"


# Large


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
        each = ", ".join(f"{name} {spent[name]:.3f}" for name in ("_prepare", "_scan", "_walk"))
        yield f"sweep {change or own}", f"{sum(spent.values()):.3f} ms a layer ({each})"
    for name, value in own.items():
        setattr(kernels, name, value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skip", nargs="*", default=[], choices=["small", "kernels", "large"])
    parser.add_argument("--layers", type=int, default=8, help="of the large shape")
    parser.add_argument("--schemes", default="bf16", help="of the large shape, with commas between them")
    parser.add_argument("--sweep", action="store_true", help="time other tile sizes of the recurrence")
    parser.add_argument("--digest", nargs=2, metavar=("FOLDER", "SCHEME"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.digest:
        folder, scheme = arguments.digest
        print(self_test(load_model(Path(folder), scheme), Sizes.up_to(1024)).digest)
        return 0
    parts: list[Iterator[Line]] = []
    if "kernels" not in arguments.skip:
        parts.append(full_width())
    if "small" not in arguments.skip:
        parts.append(small())
    if "large" not in arguments.skip:
        parts += [large(scheme, arguments.layers) for scheme in arguments.schemes.split(",")]
    if arguments.sweep:
        parts.append(sweep())
    torch.backends.cudnn.allow_tf32 = False  # transformers' convolutions are an oracle in float32
    failed, began = 0, time.perf_counter()
    for part in parts:
        try:
            for what, verdict in part:
                failed += "FAILED" in verdict
                print(f"{time.perf_counter() - began:7.1f} s  {what:52} {verdict}", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc()
        torch.cuda.empty_cache()
    print(f"{failed} failed on {torch.cuda.get_device_name()}, torch {torch.__version__}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
