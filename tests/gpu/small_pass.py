"""One small pass of Gemma 4, in several schemes, and of Qwen3.5, to run under a memory checker:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 python tests/gpu/small_pass.py
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool racecheck --error-exitcode 9 python tests/gpu/small_pass.py

Without the allocator's cache each tensor is an allocation of its own, and what lies beside it is nobody's.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
for part in (".", "tests/gpu", "plugins/qwen35", "plugins/qwen35/tests"):
    sys.path.insert(0, str(ROOT / part))

import check  # noqa: E402
import qwen  # noqa: E402
import tiny  # noqa: E402
import tiny_qwen  # noqa: E402

from spinf_core.engine.probes import random_probe, run_probes  # noqa: E402
from spinf_core.engine.sizes import Sizes  # noqa: E402
from spinf_core.stack import Model  # noqa: E402


@torch.inference_mode()
def run(what: str, model: Model) -> None:
    generator = np.random.default_rng(0)
    probes = [random_probe(generator, model.vocab_size, content, 5, 20) for content in (150, 0, 64, 3)]
    rows = run_probes(model, probes, Sizes.up_to(1024))
    assert all(torch.isfinite(each).all() for each in rows), f"{what}: a hidden row is not finite"
    print(f"{what}: {sum(map(len, rows))} rows read", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        plain, static, hybrid = (Path(name, each) for each in ("plain", "static", "hybrid"))
        static.mkdir()
        tiny.save(tiny.make("unified", **check.SHAPE | {"global_head_dim": 512}), plain)  # two programs share wide heads
        check.write_fp8_static(plain, static)
        for folder, scheme in ((static, "fp8s"), (plain, "bf16"), (plain, "fp8row"), (plain, "w8a8"), (plain, "fp32")):
            run(f"Gemma 4, {scheme}", check.load_model(folder, scheme))
        tiny_qwen.save(tiny_qwen.make("text", **qwen.SMALL), hybrid)
        run("Qwen3.5, bf16", qwen.load_model(hybrid, "bf16"))


if __name__ == "__main__":
    main()
