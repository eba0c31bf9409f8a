"""What must hold of Qwen3.5 on a GPU: python tests/gpu/qwen.py

Tiny checkpoints against transformers, the conformance suite, every scheme's invariance, and the gated delta kernels against
plain torch at full width. Prints a table and exits 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
for part in (".", "plugins/qwen35", "plugins/qwen35/tests", "plugins/quant-fp8s"):
    sys.path.insert(0, str(ROOT / part))

import tiny_qwen as tiny  # noqa: E402
from spinf_quant_fp8s.scheme import Row  # noqa: E402
from spinf_qwen35 import stack  # noqa: E402

from spinf_core.compiler.jobs import split  # noqa: E402
from spinf_core.engine.packing import lay_out  # noqa: E402
from spinf_core.engine.probes import random_probe, run_probes  # noqa: E402
from spinf_core.engine.selftest import compare_packed, compare_split, self_test  # noqa: E402
from spinf_core.engine.sizes import Sizes  # noqa: E402
from spinf_core.nn.delta import TorchTreeDelta  # noqa: E402
from spinf_core.nn.kernels import tree_delta as kernels  # noqa: E402
from spinf_core.nn.layout import TreeLayout  # noqa: E402
from spinf_core.nn.walks import RecurrencePlan  # noqa: E402
from spinf_core.quant.int8 import Int8  # noqa: E402
from spinf_core.quant.interface import Scheme  # noqa: E402
from spinf_core.quant.unquantized import Unquantized  # noqa: E402
from spinf_core.stack import LoadContext  # noqa: E402
from spinf_core.testing import conformance  # noqa: E402

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


# Lines


def report(parts: list[Iterator[Line]]) -> int:
    """Print the lines of every part as they come; 1 if anything failed."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--digest", nargs=2, metavar=("FOLDER", "SCHEME"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.digest:
        folder, scheme = arguments.digest
        print(self_test(load_model(Path(folder), scheme), Sizes.up_to(1024)).digest)
        return 0
    torch.backends.cudnn.allow_tf32 = False  # transformers' convolutions are an oracle in float32
    return report([full_width(), small()])


if __name__ == "__main__":
    sys.exit(main())
