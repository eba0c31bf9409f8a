"""The self-test: whether scores on this machine, with this model and scheme, are the same bits however they are packed.

It runs every row-wise operation of the model at every listed size, the head at every block size, and probe jobs alone, packed,
permuted, without siblings and split. Its result is kept on disk under a key of all that it depends on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import numpy as np
import torch
from torch import Tensor

from spinf_core.checkpoints.cache import write_atomically
from spinf_core.engine.probes import Probe, random_probe, read_rows, run_probes
from spinf_core.engine.reading import HEAD_SIZES
from spinf_core.engine.sizes import Sizes
from spinf_core.stack import Model, Operation

SEED = 20240229
PROBE_ROWS = 512  # hold all probe jobs in one pass
ROWS = 48  # different ones, at every size: a reduction may treat a few rows of a block alike and others not


@attrs.frozen
class SelfTest:
    """What the self-test found.

    Attributes:
        failures: what was not the same, one sentence each; empty where scores are invariant.
        digest: of the probes' outputs; enters the fingerprint.
        seconds: how long it took.
    """

    failures: tuple[str, ...]
    digest: str
    seconds: float

    @property
    def invariant(self) -> bool:
        """Whether nothing failed."""
        return not self.failures


def self_test(model: Model, sizes: Sizes, progress: Callable[[str], None] = lambda line: None) -> SelfTest:
    """Run it."""
    began = time.perf_counter()
    failures: list[str] = []
    for operation in model.operations():
        progress(f"self-test: {operation.name}")
        failures += _operation(operation, model.device, sizes)
    progress("self-test: probe jobs")
    digest = hashlib.sha256()
    failures += _head(model, digest)
    failures += _probes(model, sizes, digest)
    return SelfTest(tuple(failures), digest.hexdigest()[:16], time.perf_counter() - began)


def _rows(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(ROWS, width, generator=generator).to(device=device, dtype=dtype)


def _operation(operation: Operation, device: torch.device, sizes: Sizes) -> Iterator[str]:
    rows = _rows(operation.width, operation.dtype, device)
    expected = operation.call(rows)
    for size in sizes.listed:
        lanes = torch.arange(size, device=device) * 7 % ROWS
        if not torch.equal(operation.call(rows[lanes]), expected[lanes]):
            yield f"{operation.name}: rows change with {size} rows beside {ROWS}"


def _head(model: Model, digest: hashlib._Hash) -> Iterator[str]:
    rows = _rows(model.hidden_size, model.dtype, model.device)
    expected = read_rows(model, rows)
    digest.update(expected.cpu().numpy().tobytes())
    for size in HEAD_SIZES[model.device.type].listed:
        lanes = torch.arange(size, device=model.device) * 7 % ROWS
        if not torch.equal(read_rows(model, rows[lanes]), expected[lanes]):
            yield f"head: rows change with {size} rows beside {ROWS}"


def _probes(model: Model, sizes: Sizes, digest: hashlib._Hash) -> Iterator[str]:
    if sizes.largest < PROBE_ROWS:
        sizes = Sizes.up_to(PROBE_ROWS)
    generator = np.random.default_rng(SEED)
    probes = [
        random_probe(generator, model.vocab_size, content, branches, longest)
        for content, branches, longest in ((1, 3, 20), (63, 4, 8), (64, 3, 5), (65, 3, 18), (0, 5, 17))
    ]
    alone = [run_probes(model, [probe], sizes)[0] for probe in probes]
    for rows in alone:
        digest.update(rows.float().cpu().numpy().tobytes())
    yield from compare_packed(model, probes, alone, sizes)
    for number in (0, 3, 4):  # contents of one token, of more than a tile, and of none
        yield from compare_split(model, number, probes[number], alone[number], sizes)


def compare_packed(model: Model, probes: list[Probe], alone: list[Tensor], sizes: Sizes) -> Iterator[str]:
    """How the hidden rows of probes differ from those `alone` when they are packed, permuted, and lack siblings."""
    for number, rows in enumerate(run_probes(model, probes, sizes)):
        if not torch.equal(rows, alone[number]):
            yield f"probe {number}: changes when packed after others"
    chosen = [range(len(probe.branches))[number % 2 :: 2] for number, probe in enumerate(probes)]
    fewer = [probe.only(some) for probe, some in zip(probes, chosen, strict=True)]
    for number, rows in zip(reversed(range(len(probes))), run_probes(model, fewer[::-1], sizes), strict=True):
        if not torch.equal(rows, alone[number][list(chosen[number])]):
            yield f"probe {number}: changes when packed before others and siblings are taken away"


def compare_split(model: Model, number: int, probe: Probe, alone: Tensor, sizes: Sizes) -> Iterator[str]:
    """How the hidden rows of a probe differ from those `alone` when it is split over passes of half of its nodes."""
    job = probe.job()
    budget = len(probe.content) + max(int(job.depth.max()) + 1, len(job.token) // 2 + 1)
    (rows,) = run_probes(model, [probe], sizes, budget)
    if not torch.equal(rows, alone):
        yield f"probe {number}: changes when split into passes of {budget} rows"


def kept_self_test(folder: Path, key: str, run: Callable[[], SelfTest], again: bool) -> SelfTest:
    """The result kept for `key`, or that of `run`, kept; `again` runs it whatever is kept."""
    path = folder / f"{key}.json"
    if not again and path.is_file():
        try:
            kept = json.loads(path.read_text())
            return SelfTest(tuple(kept["failures"]), kept["digest"], kept["seconds"])
        except (ValueError, KeyError, TypeError):
            pass  # a damaged record is made anew
    result = run()
    # A cache that cannot be written costs time at the next start, nothing else.
    with contextlib.suppress(OSError):
        write_atomically(path, json.dumps(attrs.asdict(result)))
    return result
