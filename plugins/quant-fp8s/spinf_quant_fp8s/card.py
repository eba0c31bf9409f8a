"""What goes beside the weights of an fp8-static checkpoint: its configuration, how it was made, and its model card."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spinf_core.records import ModelStack
from spinf_core.registry import Registered
from spinf_quant_fp8s.table import ScaleTable

_FIELDS = ("license", "license_name", "license_link")


def quantization_config(ignored: Iterable[str]) -> dict[str, Any]:
    """The entry of `config.json` that says how the weights are stored: compressed-tensors, float-quantized, per tensor.

    Args:
        ignored: modules whose weights are matrices and were left as they are.
    """
    scaled = {
        "num_bits": 8,
        "type": "float",
        "strategy": "tensor",
        "dynamic": False,
        "symmetric": True,
        "group_size": None,
        "block_structure": None,
        "actorder": None,
        "observer": "minmax",
    }
    group = {"targets": ["Linear"], "weights": scaled, "input_activations": scaled, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": sorted(ignored),
        "kv_cache_scheme": None,
    }


def recipe(model: str, table: ScaleTable, modules: int) -> str:
    """How the checkpoint was made, as YAML: a flat mapping whose values are JSON."""
    entries = {
        "scheme": "fp8s",
        "model": model,
        "revision": table.revision,
        "modules": modules,
        "weights": "float8_e4m3fn, one scale per tensor: max |w| / 448",
        "activations": "float8_e4m3fn, one static scale per module: 2^ceil(log2(headroom * max |x| / 448))",
        "scale_table": Path(table.path).name,
        "calibration": dict(table.provenance),
    }
    return "".join(f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in entries.items())


def licence_fields(card: Path) -> dict[str, str]:
    """The licence as a model card's front matter has it, field by field; {} where there is no card or none in it."""
    try:
        text = card.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    front = re.match(r"---\n(.*?)\n---\s*$", text, re.DOTALL | re.MULTILINE)
    lines = front[1].splitlines() if front else []
    fields = {name: value.strip() for line in lines for name, colon, value in [line.partition(":")] if colon}
    return {name: fields[name] for name in _FIELDS if fields.get(name)}


def model_card(name: str, base: str, licence: Mapping[str, str], table: ScaleTable, stack: Registered[ModelStack]) -> str:
    """README.md of a checkpoint.

    Args:
        name: of its folder. base: id of the model that it was made of on the Hub; empty where it has none.
        licence: `licence_fields` of the source. table: whose scales it holds.
        stack: that runs it.
    """
    made = table.provenance
    front = {**({"base_model": base} if base else {}), **licence}
    lines = [f"{key}: {value}" for key, value in front.items()]
    corpus = (
        f"`{made['corpus']}`, {made['requests']:,} requests of {made['tokens']:,} tokens, SHA-256 `{made['corpus_sha256']}`"
        if {"corpus", "requests", "tokens", "corpus_sha256"} <= set(made)
        else "not recorded in the scale table"
    )
    source = f"[{base}](https://huggingface.co/{base})" if base else str(made.get("model", "a local checkpoint"))
    where = "The weights run dequantized on a CPU, which is what the stack runs on."
    if "cuda" in stack.record.devices:
        where = "On an NVIDIA GPU with fp8 units the scheme `fp8s` is chosen by itself; elsewhere the weights run dequantized."
    licence_line = (
        f"That of the base model: {licence.get('license_name', licence['license'])}."
        if "license" in licence
        else "That of the base model, whose card did not come with the checkpoint that this was made of."
    )
    return "\n".join(
        [
            "---",
            *lines,
            "tags:\n- fp8\n- compressed-tensors\n- spinf",
            "---",
            "",
            f"# {name}",
            "",
            f"{source} in fp8: weights and activations in float8_e4m3fn, one static scale for each tensor (compressed-tensors, "
            "`float-quantized`). Embeddings, norms and the head are as they were.",
            "",
            "## How it was made",
            "",
            "```console",
            f"$ spinf calibrate MODEL --corpus {made.get('corpus', 'requests.jsonl')} --headroom {made.get('headroom', 2.0):g}",
            f"$ spinf quantize MODEL --scales {Path(table.path).name} --out {name}",
            "```",
            "",
            f"- MODEL: revision `{table.revision}`",
            f"- corpus: {corpus}",
            "- the rest: `recipe.yaml`",
            "",
            "## How to serve it",
            "",
            "```console",
            f"$ pip install spinf-core {stack.distribution} spinf-quant-fp8s",
            f"$ spinf serve ./{name}",
            "```",
            "",
            where,
            "",
            "## Licence",
            "",
            licence_line,
            "",
        ]
    )
