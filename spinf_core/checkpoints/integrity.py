"""Is a checkpoint folder whole? Answered from safetensors headers alone, without reading weights or importing torch.

The format: 8 bytes of little-endian header length n, n bytes of JSON, then the data that the header's offsets describe
(https://huggingface.co/docs/safetensors/index#format).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from spinf_core.errors import SetupError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FETCH_AGAIN = "fetch it again from where it came"

ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}
"""Bytes of one number, by the names that safetensors gives dtypes; others are not checked."""

_MAX_HEADER = 100_000_000
"""The limit that the safetensors library itself sets; a larger number is garbage, not a header."""


@attrs.frozen
class TensorInfo:
    """Where a tensor lies.

    Attributes:
        file: its name. dtype: as safetensors spells it. shape: of the tensor.
        start: its first byte, counted from the beginning of the file. size: in bytes.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def check_folder(folder: Path, mend: str = FETCH_AGAIN) -> dict[str, Any]:
    """Check that a checkpoint folder is whole.

    Args:
        folder: holds `config.json` and `model.safetensors`, or `model.safetensors.index.json` with all its shards.
        mend: what to do about a broken file, as the end of a sentence.

    Returns:
        The parsed `config.json`.

    Raises:
        SetupError: naming the folder, the file, what is wrong with it, and the mend.
    """
    config = read_json(folder, "config.json", mend)
    read_tensors(folder, mend)
    return config


def read_tensors(folder: Path, mend: str = FETCH_AGAIN) -> dict[str, TensorInfo]:
    """Every tensor of a checkpoint by name, read from headers; each file's length is checked against its header.

    Raises:
        SetupError: for a missing, cut, overlong or unreadable file, and for weights in an unsafe format.
    """
    if (folder / INDEX).is_file():
        return _read_sharded(folder, mend)
    if (folder / SINGLE).is_file():
        return _read_file(folder, SINGLE, mend)
    if unsafe := sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern)):
        raise SetupError(
            f"checkpoint {folder}: weights are in {unsafe[0]}, a pickle, which runs code when it is read; spinf reads "
            "safetensors only: choose a revision that has them, or convert it with "
            "https://huggingface.co/spaces/safetensors/convert"
        )
    raise SetupError(f"checkpoint {folder}: there is neither {SINGLE} nor {INDEX}; {mend}")


def read_json(folder: Path, name: str, mend: str = FETCH_AGAIN) -> dict[str, Any]:
    """A JSON object from a file of the folder.

    Raises:
        SetupError: where it is missing or is no JSON object.
    """
    try:
        value = json.loads((folder / name).read_bytes())
    except OSError as error:
        raise SetupError(f"checkpoint {folder}: {name} is missing or cannot be read ({error.strerror}); {mend}") from error
    except ValueError as error:
        raise SetupError(f"checkpoint {folder}: {name} is not valid JSON ({error}); {mend}") from error
    if not isinstance(value, dict):
        raise SetupError(f"checkpoint {folder}: {name} is not a JSON object; {mend}")
    return value


def _read_sharded(folder: Path, mend: str) -> dict[str, TensorInfo]:
    weight_map = read_json(folder, INDEX, mend).get("weight_map")
    if not isinstance(weight_map, dict) or not all(_is_plain_name(shard) for shard in weight_map.values()):
        raise SetupError(f"checkpoint {folder}: {INDEX} has no valid weight_map; {mend}")
    shards = sorted(set(weight_map.values()))
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise SetupError(f"checkpoint {folder}: shard {', '.join(missing)} is missing; {mend}")
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for name, info in _read_file(folder, shard, mend).items():
            if (other := tensors.get(name)) is not None:
                raise SetupError(f"checkpoint {folder}: tensor {name} is in {other.file} and in {shard}; {mend}")
            tensors[name] = info
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].file != shard:
            raise SetupError(f"checkpoint {folder}: tensor {name} is not in {shard}, where {INDEX} puts it; {mend}")
    return tensors


def _read_file(folder: Path, name: str, mend: str) -> dict[str, TensorInfo]:
    path = folder / name
    size = path.stat().st_size
    label = f"checkpoint {folder}: {'weights' if name == SINGLE else 'shard'} {name}"
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size >= 8 and length > _MAX_HEADER:
            raise SetupError(f"{label} has no safetensors header; {mend}")
        if size < 8 + length:
            raise SetupError(f"{label} ends inside its header; {mend}")
        header = _parse_header(file.read(length))
    if header is None:
        raise SetupError(f"{label} has a safetensors header that cannot be read; {mend}")
    expected = 8 + length + max((info.start + info.size for info in header.values()), default=0)
    if size != expected:
        fault = f"{expected - size:,} bytes short" if size < expected else f"{size - expected:,} bytes too long"
        raise SetupError(f"{label} is {fault}; {mend}")
    for tensor, info in header.items():
        if info.dtype in ITEM_BYTES and info.size != math.prod(info.shape) * ITEM_BYTES[info.dtype]:
            shape = f"{info.dtype} of shape {list(info.shape)}"
            raise SetupError(f"{label} holds {info.size:,} bytes for tensor {tensor}, {shape}; {mend}")
    return {tensor: attrs.evolve(info, file=name, start=8 + length + info.start) for tensor, info in header.items()}


def _parse_header(encoded: bytes) -> dict[str, TensorInfo] | None:
    """Tensor -> its description, its start counted from the end of the header; None for what is no safetensors header."""
    try:
        header = json.loads(encoded)
        return {name: _parse_entry(entry) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


def _parse_entry(entry: Mapping[str, Any]) -> TensorInfo:
    start, end = map(int, entry["data_offsets"])
    if not 0 <= start <= end:
        raise ValueError
    return TensorInfo("", str(entry["dtype"]), tuple(map(int, entry["shape"])), start, end - start)


def _is_plain_name(name: object) -> bool:
    # An index is data from elsewhere: it must not lead out of its folder.
    return isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")


def hub_mend(repo: str, revision: str) -> str:
    """The mend for a broken file that came from the Hub."""
    return f"fetch it again with `hf download {repo} --revision {revision} --force-download`"


def summarize(names: Mapping[str, object] | list[str], limit: int = 8) -> str:
    """A list of names for a message, cut at `limit`."""
    listed = sorted(names)
    rest = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {rest:,} more" if rest > 0 else "")
