"""What must hold on a GPU: python tests/gpu/check.py [--shape FOLDER] [--skip PART …]

Prints a table and exits 1 if anything failed. `--shape` names a checkpoint of a large shape, on which invariance is tried too.
Parts: `transformers` (tiny checkpoints of every variant), `small` (every scheme on a small shape: its error, and every bit),
`fresh` (the same bits in a process of its own).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
for part in (".", "plugins/gemma4", "plugins/gemma4/tests", "plugins/quant-fp8s", "plugins/smollm2"):
    sys.path.insert(0, str(ROOT / part))

import tiny  # noqa: E402
from spinf_gemma4.stack import load  # noqa: E402
from spinf_quant_fp8s.scheme import Dynamic, Row, Static  # noqa: E402

from spinf_core.engine.probes import Probe, random_probe, run_probes  # noqa: E402
from spinf_core.engine.selftest import compare_packed, compare_split, self_test  # noqa: E402
from spinf_core.engine.sizes import Sizes  # noqa: E402
from spinf_core.quant.int8 import Int8  # noqa: E402
from spinf_core.quant.interface import Scheme  # noqa: E402
from spinf_core.quant.unquantized import Unquantized  # noqa: E402
from spinf_core.stack import LoadContext, Model  # noqa: E402
from spinf_core.testing import conformance  # noqa: E402

CUDA = torch.device("cuda:0")
SCHEMES: dict[str, Callable[[], Scheme]] = {
    "bf16": lambda: Unquantized("bf16"),
    "fp32": lambda: Unquantized("fp32"),
    "w8a16": lambda: Int8("w8a16", CUDA),
    "w8a8": lambda: Int8("w8a8", CUDA),
    "fp8s": lambda: Static(None),
    "fp8row": Row,
    "fp8": Dynamic,
}
CONTENTS = (1, 3, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 3000, 20_000)
# A small shape whose widths fp8 products take.
SHAPE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "global_head_dim": 128, "sliding_window": 100}


def load_model(folder: Path, scheme: str) -> Model:
    config = json.loads((folder / "config.json").read_text())
    return load(LoadContext(folder=folder, config=config, device=CUDA, scheme=SCHEMES[scheme]()))


def probes_for(model: Model) -> list[Probe]:
    generator = np.random.default_rng(7)
    made = [random_probe(generator, model.vocab_size, content, 12, 40) for content in CONTENTS]
    many = random_probe(generator, model.vocab_size, 20, 2000, 6)
    return [*made, many, many.only([1]), random_probe(generator, model.vocab_size, 0, 40, 40), siblings(generator, model)]


def siblings(generator: np.random.Generator, model: Model) -> Probe:
    """Branches that share 1, 2, … 40 tokens with the first."""
    first, *others = (tuple(generator.integers(0, model.vocab_size, 41).tolist()) for _ in range(41))
    return Probe(first[:9], (first, *(first[:shared] + other[shared:] for shared, other in enumerate(others, 1))))


def against_transformers(variants: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for variant in variants:
        with tempfile.TemporaryDirectory() as name:
            oracle_model = tiny.make(variant)
            folder = tiny.save(oracle_model, Path(name))
            oracle_model = oracle_model.to(CUDA)
            for scheme, tolerance in (("fp32", 1e-4), ("bf16", 5e-2)):
                if (variant, scheme) == ("experts", "bf16"):
                    continue  # a rounding may choose another expert
                model = load_model(folder, scheme)
                # In float32 on weights rounded as the model's are: the error is then the model's alone.
                oracle = tiny.oracle_of(oracle_model.to(model.dtype).float(), "cuda")
                checks: dict[str, Callable[[], None]] = {
                    "contract": partial(conformance.check_contract, model),
                    "odd passes": partial(conformance.check_odd_passes, model),
                    "oracle": partial(conformance.check_oracle, model, oracle, tolerance),
                    "invariance": partial(conformance.check_invariance, model),
                    "past": partial(conformance.check_past, model),
                }
                for check, run in checks.items():
                    try:
                        run()
                        yield f"{variant} {scheme} {check}", "ok"
                    except AssertionError as error:
                        yield f"{variant} {scheme} {check}", f"FAILED {error}"[:300]


def write_fp8_static(folder: Path, target: Path) -> None:
    """An fp8-static copy of a plain checkpoint, with scales that cover what random activations reach."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    made = {}
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            scale = tensor.abs().max().float() / 448
            made[name] = (tensor.float() / scale).to(torch.float8_e4m3fn)
            made[f"{name}_scale"] = scale.reshape(1)
            made[name.replace(".weight", ".input_scale")] = torch.tensor([2.0**-5])
        else:
            made[name] = tensor.to(torch.bfloat16)
    save_file(made, target / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    static = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"weights": static, "input_activations": static}},
    }
    (target / "config.json").write_text(json.dumps(config))
    (target / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())


def invariance(folder: Path, schemes: tuple[str, ...], what: str, fresh: bool) -> Iterator[tuple[str, str]]:
    for scheme in schemes:
        began = time.perf_counter()
        model = load_model(folder, scheme)
        loaded = time.perf_counter() - began
        sizes = Sizes.up_to(16_384, 65_536)
        tested = self_test(model, Sizes.up_to(16_384))
        probes = probes_for(model)
        with torch.inference_mode():
            alone = [run_probes(model, [probe], sizes)[0] for probe in probes]
            pairs = enumerate(zip(probes, alone, strict=True))
            problems = [
                *tested.failures,
                *compare_packed(model, probes, alone, sizes),
                *(problem for number, pair in pairs for problem in compare_split(model, number, *pair, sizes)),
            ]
        invariant = scheme != "fp8"
        verdict = "ok" if bool(problems) != invariant else "FAILED"
        shown = problems[0] if problems else "every bit kept"
        yield f"{what} {scheme}: invariance", f"{verdict} ({shown}; load {loaded:.1f} s, self-test {tested.seconds:.1f} s)"
        if invariant and fresh:
            again = subprocess.run(
                [sys.executable, __file__, "--digest", str(folder), scheme], capture_output=True, text=True, check=True
            ).stdout.strip()
            same = again == tested.digest
            yield f"{what} {scheme}: a fresh process", "ok" if same else f"FAILED: {again} is not {tested.digest}"
        del model, alone
        torch.cuda.empty_cache()


def errors(plain: Path, static: Path) -> Iterator[tuple[str, str]]:
    """Each scheme against float32 on the small shape."""
    model = load_model(plain, "fp32")
    probes = conformance.probes(model)
    with torch.inference_mode():
        expected = [conformance.log_probabilities(model, rows) for rows in run_probes(model, probes, conformance.SIZES)]
        for scheme in ("bf16", "w8a16", "w8a8", "fp8row", "fp8", "fp8s"):
            other = load_model(static if scheme == "fp8s" else plain, scheme)
            found = [conformance.log_probabilities(other, rows) for rows in run_probes(other, probes, conformance.SIZES)]
            difference = torch.cat([(a - b).abs()[b > b.max() - 10] for a, b in zip(found, expected, strict=True)])
            finite = bool(torch.isfinite(difference).all())
            shown = f"largest {difference.max():.4f}, mean {difference.mean():.5f}"
            yield f"{scheme} against float32", f"{'ok' if finite else 'FAILED'} ({shown})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", type=Path, help="a checkpoint of a large shape, fp8-static")
    parser.add_argument("--schemes", default="fp8s,bf16,fp8row,w8a16,w8a8,fp8", help="schemes tried on it")
    parser.add_argument(
        "--variants", nargs="*", default=tiny.VARIANTS, choices=tiny.VARIANTS, help="tried against transformers"
    )
    parser.add_argument("--skip", nargs="*", default=(), choices=("transformers", "small", "fresh"))
    parser.add_argument("--digest", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.digest:
        folder, scheme = arguments.digest
        model = load_model(Path(folder), scheme)
        print(self_test(model, Sizes.up_to(1024)).digest)
        return 0
    parts: list[Iterator[tuple[str, str]]] = []
    fresh = "fresh" not in arguments.skip
    if "transformers" not in arguments.skip:
        parts.append(against_transformers(tuple(arguments.variants)))
    work = tempfile.TemporaryDirectory()
    if "small" not in arguments.skip:
        plain, static = Path(work.name, "plain"), Path(work.name, "static")
        static.mkdir()
        tiny.save(tiny.make("unified", **SHAPE), plain)
        write_fp8_static(plain, static)
        parts.append(errors(plain, static))
        parts.append(invariance(plain, ("bf16", "fp32", "fp8row", "w8a16", "w8a8", "fp8"), "small", fresh))
        parts.append(invariance(static, ("fp8s",), "small", fresh))
    if arguments.shape:
        parts.append(invariance(arguments.shape, tuple(arguments.schemes.split(",")), "large", fresh))
    failed = 0
    began = time.perf_counter()
    for part in parts:
        for what, verdict in part:
            failed += "FAILED" in verdict
            print(f"{time.perf_counter() - began:7.1f} s  {what:45} {verdict}", flush=True)
    print(f"{failed} failed on {torch.cuda.get_device_name()}, torch {torch.__version__}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
