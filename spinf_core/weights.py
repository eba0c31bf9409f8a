"""A checkpoint's tensors, taken by name: every one is asked for, or known to be unused, or an error."""

from __future__ import annotations

import difflib
import fnmatch
import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from spinf_core.checkpoints.integrity import FETCH_AGAIN, read_tensors, summarize
from spinf_core.errors import SetupError

_log = logging.getLogger(__name__)


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
        self._device = torch.device(device)
        self._tensors = read_tensors(folder, mend)
        self._left = set(self._tensors)
        self._files: dict[str, Any] = {}
        self._open_files = ExitStack()

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
            SetupError: where it is missing or has another shape.
        """
        self._need(name)
        info = self._tensors[name]
        if shape is not None and info.shape != shape:
            raise SetupError(
                f"checkpoint {self._folder}: tensor {name} has shape {list(info.shape)}, expected {list(shape)}; its "
                "config.json describes another model"
            )
        self._left.discard(name)
        tensor: Tensor = self._open(info.file).get_tensor(name)
        # A tensor on the CPU is a view of the mapped file, at the file's alignment: the copy is torch's own memory, so
        # that arithmetic does not depend on where a tensor lies in a file, nor on the file staying as it is.
        return tensor.to(dtype=dtype or tensor.dtype, copy=self._device.type == "cpu")

    def skip(self, pattern: str, why: str) -> None:
        """Leave out the tensors whose names match a shell pattern (`*.inv_freq`), for the reason given."""
        matched = set(fnmatch.filter(self._left, pattern))
        if matched:
            _log.debug("%d tensors %s are not read: %s", len(matched), pattern, why)
        self._left -= matched

    def finish(self) -> None:
        """Close the files.

        Raises:
            SetupError: when tensors remain that were neither taken nor skipped.
        """
        self.close()
        if self._left:
            count = len(self._left)
            raise SetupError(
                f"checkpoint {self._folder}: {count:,} tensor{'s were' if count > 1 else ' was'} not expected: "
                f"{summarize(list(self._left))}; the model differs from what this stack runs"
            )

    def close(self) -> None:
        """Close the files; `finish` does too."""
        self._files.clear()
        self._open_files.close()

    def _need(self, name: str) -> None:
        if name not in self._tensors:
            near = difflib.get_close_matches(name, self._tensors, n=3, cutoff=0.6)
            hint = f"; the nearest names are {', '.join(near)}" if near else ""
            raise SetupError(f"checkpoint {self._folder} has no tensor {name}{hint}")

    def _open(self, file: str) -> Any:
        if file not in self._files:
            handle = safe_open(self._folder / file, framework="pt", device=str(self._device))
            self._files[file] = self._open_files.enter_context(handle)
        return self._files[file]
