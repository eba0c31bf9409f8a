"""Calibration: a corpus goes through the unquantized model, and the largest inputs of its linears become scales."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs
import torch

from spinf_core.compiler.compile import CompiledRequest, Compiler
from spinf_core.compiler.jobs import Job, Part, split
from spinf_core.compiler.questions import FloorKey
from spinf_core.engine.devices import choose_device
from spinf_core.engine.loading import DEFAULT_ROWS, Located, Progress, build_model, locate
from spinf_core.engine.packing import lay_out
from spinf_core.engine.sizes import Sizes
from spinf_core.errors import Rejected, SetupError
from spinf_core.packs.loading import load_catalog, served_names
from spinf_core.protocol import ParsedRequest
from spinf_core.quant.reading import has_static_fp8
from spinf_core.quant.unquantized import DTYPES, Unquantized
from spinf_core.registry import Plugins
from spinf_core.settings import Settings
from spinf_core.stack import Model
from spinf_quant_fp8s.corpus import Corpus, refusal
from spinf_quant_fp8s.recorder import Recorder
from spinf_quant_fp8s.table import ScaleTable, static_scale

EVERY = 2.0
"""Seconds between two lines of progress."""


@attrs.frozen
class Amount:
    """What went through the model: requests, and tokens of contents, questions and floors."""

    requests: int
    tokens: int


def calibrate(
    name: str, corpus: Corpus, out: Path, headroom: float, settings: Settings, plugins: Plugins, progress: Progress
) -> ScaleTable:
    """Calibrate a model on a corpus and write its scale table.

    Args:
        name: of the model: id, alias, folder or Hub id. corpus: what is run.
        out: the table's file. headroom: room above the largest magnitude seen, as a factor.
        progress: called with a line for each stage, and now and then within them.

    Raises:
        SetupError: naming what is missing or wrong, and what to do.
    """
    catalog_wanted = corpus.names_packs and settings.features.official_packs
    catalog = load_catalog(settings, plugins, served_names(plugins, name), progress, official=catalog_wanted)
    manifest = plugins.manifests.find(name)
    limits = (settings.with_manifest(manifest) if manifest else settings).limits
    requests = corpus.parse(limits, catalog)
    scheme = _scheme_name(settings)
    located = locate(name, settings, plugins, progress)
    refuse_quantized(located)
    _check_out(out, located.checkpoint.folder)
    device = choose_device(settings.engine.device, located.stack)
    if settings.engine.threads is not None:
        torch.set_num_threads(settings.engine.threads)
    recorder = Recorder(Unquantized(scheme or ("fp32" if device.type == "cpu" else "bf16")))
    model = build_model(located, device, recorder, progress)
    amount = run(model, recorder, requests, corpus.path, located.settings, progress)
    table = ScaleTable(
        revision=located.checkpoint.revision,
        provenance=provenance(located, corpus, amount, headroom, recorder.name),
        scales={module: static_scale(largest, headroom) for module, largest in recorder.largest().items()},
        path=str(out),
    )
    try:
        table.write(out)
    except OSError as error:
        raise SetupError(f"scale table {out} cannot be written ({error.strerror}); name another file with --out") from error
    return table


def run(
    model: Model,
    recorder: Recorder,
    requests: Iterable[tuple[int, ParsedRequest]],
    path: Path,
    settings: Settings,
    progress: Progress,
) -> Amount:
    """Run every request's contents, questions and floors under the recorder's eyes.

    Raises:
        SetupError: a request, named by its line, does not suit the model; or an activation is not finite.
    """
    default_budget, default_rows = DEFAULT_ROWS[model.device.type]
    max_rows = min(settings.engine.max_tokens or default_rows, model.max_positions)
    budget = min(settings.engine.token_budget or default_budget, max_rows)
    sizes = Sizes.up_to(budget, max_rows)
    compiler = Compiler(model.tokenizer, max_rows, settings.limits)
    compiled = []
    for number, request in requests:
        try:
            compiled.append(compiler.compile(request))
        except Rejected as error:
            raise refusal(path, number, error) from None
    jobs = list(_jobs(compiled))
    total = sum(job.rows for job in jobs)
    tokens, said = 0, time.perf_counter()
    for parts in _passes(jobs, budget, max_rows):
        pass_ = lay_out(parts, sizes, model.axes).pass_
        with torch.inference_mode(), recorder.watching(pass_):
            model.forward(pass_)
        tokens += int((pass_.job >= 0).sum())
        if time.perf_counter() - said > EVERY:
            said = time.perf_counter()
            progress(f"calibrating: {tokens:,} of about {max(total, tokens):,} tokens")
    progress(f"calibrated on {len(compiled):,} requests, {tokens:,} tokens")
    return Amount(len(compiled), tokens)


def _jobs(requests: Iterable[CompiledRequest]) -> Iterator[Job]:
    """The jobs of every input, and of every floor once."""
    read: set[FloorKey] = set()
    for request in requests:
        for entry in request.inputs:
            yield entry.job
        new = [number for key, number in request.floors.numbers.items() if key not in read]
        if new:
            read |= request.floors.numbers.keys()
            yield request.floors.job(new)


def _passes(jobs: Iterable[Job], budget: int, max_rows: int) -> Iterator[list[Part]]:
    """Parts that share a pass, up to the budget; a job beyond it runs alone, or in several parts."""
    waiting: list[Part] = []
    for job in jobs:
        for part in split(job, budget if job.rows <= budget else max_rows):
            if waiting and sum(each.rows for each in waiting) + part.rows > budget:
                yield waiting
                waiting = []
            waiting.append(part)
    if waiting:
        yield waiting


def provenance(located: Located, corpus: Corpus, amount: Amount, headroom: float, dtype: str) -> dict[str, Any]:
    """How a table came about, for people."""
    return {
        "model": located.id,
        "checkpoint": located.checkpoint.origin,
        "corpus": corpus.path.name,
        "corpus_sha256": corpus.sha256,
        "requests": amount.requests,
        "tokens": amount.tokens,
        "headroom": headroom,
        "activations": dtype,
        "versions": {name: _version(name) for name in ("spinf-core", "spinf-quant-fp8s", "torch")},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def refuse_quantized(located: Located) -> None:
    """Refuse a checkpoint that has fp8 scales already.

    Raises:
        SetupError: it has; or it is quantized in another way.
    """
    if has_static_fp8(located.config):
        raise SetupError(
            f"{located.id} ({located.checkpoint.origin}) is fp8-static already, with scales of its own; name the unquantized "
            "checkpoint, by its folder or as org/name@revision"
        )


def _scheme_name(settings: Settings) -> str | None:
    """The unquantized scheme asked for, if any."""
    name = settings.engine.quant
    if name is not None and name not in DTYPES:
        raise SetupError(
            f"calibration runs the unquantized model, not {name!r} ({settings.origin('engine.quant')}); use --quant "
            f"{' or '.join(DTYPES)}, or leave it out"
        )
    return name


def _check_out(out: Path, checkpoint: Path) -> None:
    """Before any long work: can the table be written where it shall go?"""
    folder = out.resolve().parent
    if folder == checkpoint.resolve():
        raise SetupError(f"{out} lies in the checkpoint's own folder, whose revision it would change; name another with --out")
    try:
        if out.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        probe = out.with_name(out.name + ".part")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SetupError(f"scale table {out} cannot be written ({error.strerror}); name another file with --out") from error


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
