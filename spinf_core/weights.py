"""A checkpoint's tensors, taken by name: every one is asked for, or known to be unused, or an error."""

from __future__ import annotations

import difflib
import fnmatch
import logging
import time
from pathlib import Path

import torch
from torch import Tensor

from spinf_core.checkpoints.integrity import FETCH_AGAIN, read_tensors, summarize
from spinf_core.errors import SetupError
from spinf_core.staging import SpanReader

_log = logging.getLogger(__name__)

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""torch's dtypes by the names that safetensors gives them."""


class Weights:
    """The safetensors files of a checkpoint folder, read lazily.

    A stack takes the tensors that its architecture describes, names those it leaves out on purpose, and calls `finish`,
    which fails if any other remains: a tensor that nobody reads means that the model is not the one that was trained.

        weights = Weights(folder, device)
        weights.skip("*.rotary_emb.inv_freq", "computed from the config")
        embedding = weights.take("model.embed_tokens.weight", (vocab_size, hidden_size), torch.float32)
        ...
        weights.finish()

    Args:
        folder: the checkpoint.
        device: where tensors are put.
        mend: what to do about a broken file, as the end of a sentence.

    Raises:
        SetupError: for a missing, cut or unreadable file.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu", mend: str = FETCH_AGAIN) -> None:
        self._folder = folder
        self._mend = mend
        self._tensors = read_tensors(folder, mend)
        self._left = set(self._tensors)
        self._reader = SpanReader(torch.device(device))
        self._bytes = 0
        self._began = time.perf_counter()

    def names(self) -> list[str]:
        """Every tensor's name, sorted."""
        return sorted(self._tensors)

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor."""
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, from the header alone.

        Raises:
            SetupError: where there is none, with the nearest names that there are.
        """
        self._need(name)
        return self._tensors[name].shape

    def take(self, name: str, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Read a tensor; a second `take` reads it again.

        Args:
            name: as the checkpoint spells it.
            shape: what it has to be.
            dtype: converted to; None keeps the stored one.

        Raises:
            SetupError: where it is missing, has another shape or a dtype that is not known, or its file cannot be read.
        """
        self._need(name)
        info = self._tensors[name]
        if shape is not None and info.shape != shape:
            raise SetupError(
                f"checkpoint {self._folder}: tensor {name} has shape {list(info.shape)}, expected {list(shape)}; its "
                "config.json describes another model"
            )
        self._left.discard(name)
        stored = DTYPES.get(info.dtype)
        if stored is None:
            raise SetupError(f"checkpoint {self._folder}: tensor {name} has dtype {info.dtype}, which is not one that is read")
        try:
            read = self._reader.read(self._folder / info.file, info.start, info.size)
        except (OSError, EOFError) as error:
            raise SetupError(f"checkpoint {self._folder}: {info.file} cannot be read ({error}); {self._mend}") from error
        self._bytes += info.size
        return read.view(stored).view(info.shape).to(dtype or stored)

    def skip(self, pattern: str, why: str) -> None:
        """Leave out the tensors whose names match a shell pattern (`*.inv_freq`), for the reason given."""
        matched = set(fnmatch.filter(self._left, pattern))
        if matched:
            _log.debug("%d tensors %s are not read: %s", len(matched), pattern, why)
        self._left -= matched

    def finish(self) -> None:
        """Say that everything was taken.

        Raises:
            SetupError: when tensors remain that were neither taken nor skipped.
        """
        self.close()
        seconds = time.perf_counter() - self._began
        _log.info("%s: read %.2f GB in %.1f s", self._folder, self._bytes / 1e9, seconds)
        if self._left:
            count = len(self._left)
            raise SetupError(
                f"checkpoint {self._folder}: {count:,} tensor{'s were' if count > 1 else ' was'} not expected: "
                f"{summarize(list(self._left))}; the model differs from what this stack runs"
            )

    def close(self) -> None:
        """Give back what reading took; `finish` does too."""
        self._reader.close()

    def _need(self, name: str) -> None:
        if name not in self._tensors:
            near = difflib.get_close_matches(name, self._tensors, n=3, cutoff=0.6)
            hint = f"; the nearest names are {', '.join(near)}" if near else ""
            raise SetupError(f"checkpoint {self._folder} has no tensor {name}{hint}")
