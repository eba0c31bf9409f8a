"""Writing safetensors files tensor by tensor, so that no shard is ever held in memory.

The format: 8 bytes of little-endian header length, JSON that says where each tensor's bytes lie, then the bytes
(https://huggingface.co/docs/safetensors/index#format).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor

from spinf_core.checkpoints.integrity import ITEM_BYTES
from spinf_core.weights import DTYPES

Shape = tuple[int, ...]


class ShardWriter:
    """A safetensors file whose tensors are written one at a time, in any order; a context manager.

        with ShardWriter(path, {"a.weight": ("F8_E4M3", (4, 8)), "a.weight_scale": ("F32", (1,))}) as shard:
            shard.put("a.weight", weight)
            shard.put("a.weight_scale", scale)

    Args:
        path: of the file, which is written anew.
        tensors: every tensor's dtype, as safetensors spells it, and shape.
    """

    def __init__(self, path: Path, tensors: Mapping[str, tuple[str, Shape]]) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        self._starts: dict[str, int] = {}
        self._tensors = dict(tensors)
        self.size = 0
        # Wide numbers first, as the library's own writer has them, so that every tensor is aligned.
        for name in sorted(tensors, key=lambda name: (-ITEM_BYTES[tensors[name][0]], name)):
            dtype, shape = tensors[name]
            end = self.size + math.prod(shape) * ITEM_BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [self.size, end]}
            self._starts[name], self.size = self.size, end
        encoded = json.dumps(header, separators=(",", ":")).encode()
        encoded += b" " * (-len(encoded) % 8)
        self._first = 8 + len(encoded)
        self._file = path.open("wb")
        self._file.write(len(encoded).to_bytes(8, "little") + encoded)

    def put(self, name: str, tensor: Tensor) -> None:
        """Write a tensor's bytes where the header says.

        Raises:
            ValueError: it was not announced like this, or is there already.
        """
        dtype, shape = self._tensors[name]
        if tensor.dtype != DTYPES[dtype] or tuple(tensor.shape) != shape or name not in self._starts:
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; announced once was {dtype} {list(shape)}")
        self._file.seek(self._first + self._starts.pop(name))
        octets = tensor.cpu().contiguous().reshape(-1).view(DTYPES["U8"])
        self._file.write(octets.numpy().data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._file.close()
        if kind is None and self._starts:
            raise ValueError(f"{', '.join(self._starts)}: announced and not written")
