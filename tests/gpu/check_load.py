"""What must hold of loading on a GPU: python tests/gpu/check_load.py [FOLDER] [--device cuda:0]

Every byte arrives, weights quantized at load have the bits of a checkpoint written by `spinf quantize` on the CPU, and, with
FOLDER, a checkpoint of a large shape: how long its tensors take, and how much memory beside them. Exits 1 if anything failed.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
for part in (
    ".",
    "plugins/gemma4",
    "plugins/gemma4/tests",
    "plugins/quant-fp8s",
    "plugins/smollm2",
    "tests/quant",
    "tests/gpu",
):
    sys.path.insert(0, str(ROOT / part))

import static  # noqa: E402
import tiny  # noqa: E402
from check import SHAPE  # noqa: E402
from safetensors import safe_open  # noqa: E402
from spinf_quant_fp8s.quantization import quantize  # noqa: E402
from spinf_quant_fp8s.scheme import Static  # noqa: E402
from spinf_quant_fp8s.table import ScaleTable  # noqa: E402

from spinf_core.checkpoints import read_tensors  # noqa: E402
from spinf_core.engine.probes import run_probes  # noqa: E402
from spinf_core.registry import load_factory  # noqa: E402
from spinf_core.stack import LoadContext, Model  # noqa: E402
from spinf_core.testing import conformance  # noqa: E402
from spinf_core.weights import Weights  # noqa: E402

Row = tuple[str, bool, str]


def every_byte(folder: Path, device: torch.device) -> Iterator[Row]:
    """Each tensor against what the safetensors library reads on the CPU."""
    weights = Weights(folder, device)
    wrong = []
    for name, info in read_tensors(folder).items():
        with safe_open(folder / info.file, framework="pt") as file:
            expected = file.get_tensor(name).reshape(-1).view(torch.uint8)
        if not torch.equal(weights.take(name).cpu().reshape(-1).view(torch.uint8), expected):
            wrong.append(name)
    yield "every byte arrives", not wrong, ", ".join(wrong[:3]) or f"{len(weights.names())} tensors"


@torch.inference_mode()
def hidden(folder: Path, scheme: Static, device: torch.device) -> list[torch.Tensor]:
    found = static.located(folder)
    context = LoadContext(folder=folder, config=found.config, device=device, scheme=scheme)
    model: Model = load_factory(found.stack)(context)
    return run_probes(model, conformance.probes(model), conformance.SIZES)


def quantized_alike(work: Path, device: torch.device) -> Iterator[Row]:
    """A plain checkpoint with a table against the checkpoint that was written from both on the CPU."""
    model = tiny.make("unified", **SHAPE).to(torch.bfloat16)
    modules = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and name != "lm_head"]
    plain = static.located(static.save(model, work / "plain", "200KB"))
    # Scales of each module's own, so that merged ones are also split.
    scales = {name: 2.0 ** -(4 + number % 3) for number, name in enumerate(modules)}
    table = ScaleTable(revision=plain.checkpoint.revision, provenance={}, scales=scales)
    quantize(plain, table, work / "fp8", "", lambda line: None)
    yield from every_byte(work / "fp8", device)
    pairs = zip(hidden(work / "plain", Static(table), device), hidden(work / "fp8", Static(None), device), strict=True)
    yield "quantized at load as written", all(torch.equal(*pair) for pair in pairs), f"{len(modules)} linears"


def timed(folder: Path, device: torch.device) -> Iterator[Row]:
    """All tensors of a large checkpoint, once."""
    size = sum(info.size for info in read_tensors(folder).values())
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    weights = Weights(folder, device)
    taken = [weights.take(name) for name in weights.names()]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    weights.close()
    shown = f"{size / 2**30:.1f} GiB in {seconds:.1f} s, {size / 2**30 / seconds:.2f} GiB/s"
    yield "12 GiB in under 20 s", seconds / size * 12 * 2**30 < 20, shown
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - host) * 1024
        shown = f"device peak {peak / 2**30:.2f} GiB, host grew by {grown / 2**30:.2f} GiB"
        yield "no second copy", peak < size * 1.05 + 2**28 and grown < 2**30, shown
    del taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="a checkpoint of a large shape")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda:0"))
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        rows = [*quantized_alike(Path(name), arguments.device)]
    if arguments.folder:
        rows += timed(arguments.folder, arguments.device)
    for what, good, shown in rows:
        failed += not good
        print(f"{what:32} {'ok' if good else 'FAILED'} ({shown})")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
