"""Quantization: a plain checkpoint and a scale table become an fp8-static checkpoint, shard by shard."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from spinf_core.checkpoints.integrity import INDEX, TensorInfo, check_folder, read_tensors, summarize
from spinf_core.engine.loading import Located, Progress
from spinf_core.errors import SetupError
from spinf_core.weights import Weights
from spinf_quant_fp8s.calibration import refuse_quantized
from spinf_quant_fp8s.card import licence_fields, model_card, quantization_config, recipe
from spinf_quant_fp8s.products import quantize_weight
from spinf_quant_fp8s.table import ScaleTable
from spinf_quant_fp8s.writing import Shape, ShardWriter

FLOATS = ("BF16", "F16", "F32")
COPIED = ("*.json", "tokenizer.model", "merges.txt", "vocab.txt", "*.jinja", "LICENSE*", "NOTICE*")
"""What is copied as it is, beside what is written anew."""


def quantize(located: Located, table: ScaleTable, out: Path, base: str, progress: Progress) -> int:
    """Write an fp8-static checkpoint. The folder appears whole or not at all.

    Args:
        located: the plain checkpoint. table: of its linears' input scales.
        out: the folder; missing or empty. base: id on the Hub for the card; empty: the checkpoint's own, where it has one.
        progress: called with a line for each shard.

    Returns:
        How many weights were quantized.

    Raises:
        SetupError: the table is another checkpoint's, the checkpoint is broken, or the folder is full or cannot be made.
    """
    source = located.checkpoint.folder
    refuse_quantized(located)
    table.check_revision(located.checkpoint.revision)
    tensors = read_tensors(source)
    _check_modules(table, tensors)
    _check_free(out, source)
    base = base or _hub_id(located)
    try:
        with _appearing(out) as folder:
            _write_weights(source, tensors, table, folder, progress)
            for path in sorted({path for pattern in COPIED for path in source.glob(pattern) if path.is_file()}):
                if path.name not in (INDEX, "config.json") and not path.name.startswith("."):
                    shutil.copyfile(path, folder / path.name)
            (folder / "recipe.yaml").write_text(recipe(located.id, table, len(table.scales)), encoding="utf-8")
            card = model_card(out.resolve().name, base, licence_fields(source / "README.md"), table, located.stack)
            (folder / "README.md").write_text(card, encoding="utf-8")
            # Last, so that no folder without all of the above is a checkpoint.
            config = {**located.config, "quantization_config": quantization_config(_ignored(tensors, table))}
            (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            check_folder(folder, "the writing is at fault; please report it")
    except OSError as error:
        raise SetupError(
            f"{out} cannot be written ({error.strerror or error}); free some space, or name another --out"
        ) from error
    return len(table.scales)


def _write_weights(
    source: Path, tensors: Mapping[str, TensorInfo], table: ScaleTable, folder: Path, progress: Progress
) -> None:
    """Every shard under its own name, and the index where the source has one."""
    weights = Weights(source)
    shards: dict[str, list[str]] = {}
    for name, info in tensors.items():
        shards.setdefault(info.file, []).append(name)
    weight_map: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(sorted(shards), 1):
        progress(f"writing {shard} ({number} of {len(shards)})")
        announced: dict[str, tuple[str, Shape]] = {}
        for name in shards[shard]:
            announced |= _announced(name, tensors[name], table)
        with ShardWriter(folder / shard, announced) as writer:
            for name in shards[shard]:
                _write_tensor(name, weights, table, writer)
            total += writer.size
        weight_map |= dict.fromkeys(announced, shard)
    weights.close()
    if (source / INDEX).is_file():
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _announced(name: str, info: TensorInfo, table: ScaleTable) -> dict[str, tuple[str, Shape]]:
    """The tensors that a tensor of the source becomes."""
    module = name.removesuffix(".weight")
    if module == name or module not in table.scales:
        return {name: (info.dtype, info.shape)}
    return {name: ("F8_E4M3", info.shape), f"{name}_scale": ("F32", (1,)), f"{module}.input_scale": ("F32", (1,))}


def _write_tensor(name: str, weights: Weights, table: ScaleTable, writer: ShardWriter) -> None:
    module = name.removesuffix(".weight")
    if module == name or module not in table.scales:
        writer.put(name, weights.take(name))
        return
    plain = weights.take(name, dtype=torch.float32)
    if not torch.isfinite(plain).all():
        raise SetupError(f"tensor {name} holds numbers that are not finite; the checkpoint is damaged: fetch it again")
    weight, scale = quantize_weight(plain)
    writer.put(name, weight)
    writer.put(f"{name}_scale", scale.reshape(1))
    writer.put(f"{module}.input_scale", torch.tensor([table.input_scale(module)], dtype=torch.float32))


def _check_modules(table: ScaleTable, tensors: Mapping[str, TensorInfo]) -> None:
    if missing := [module for module in table.scales if f"{module}.weight" not in tensors]:
        raise SetupError(
            f"scale table {table.path} has scales for {summarize(missing)}, and the checkpoint has no such weights; make it "
            "anew with `spinf calibrate`"
        )
    for module in table.scales:
        info = tensors[f"{module}.weight"]
        if len(info.shape) != 2 or info.dtype not in FLOATS:
            raise SetupError(f"tensor {module}.weight is {info.dtype} of shape {list(info.shape)}, not a matrix of floats")


def _ignored(tensors: Mapping[str, TensorInfo], table: ScaleTable) -> list[str]:
    """Modules with a matrix that was left as it is; the head, which may be tied and so have no tensor, is always one."""
    matrices = {
        name.removesuffix(".weight") for name, info in tensors.items() if name.endswith(".weight") and len(info.shape) == 2
    }
    return sorted({module for module in matrices if "embed_tokens" not in module} - set(table.scales) | {"lm_head"})


def _hub_id(located: Located) -> str:
    """`org/name` of a checkpoint from the Hub."""
    repo, at, _ = located.checkpoint.origin.partition("@")
    return repo if at and repo.count("/") == 1 and not repo.startswith((".", "/")) else ""


def _check_free(out: Path, source: Path) -> None:
    if out.resolve() == source.resolve() or source.resolve() in out.resolve().parents:
        raise SetupError(f"{out} lies in the checkpoint that is read; name another folder with --out")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise SetupError(f"{out} is there already and is not an empty folder; remove it, or name another with --out")


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place at the end; what an interrupted run leaves is not called `out`."""
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if out.exists():
            out.rmdir()
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
