"""The contract between the engine and a model stack: the pass that comes in, the model that runs it, the state it keeps.

A stack's factory takes a `LoadContext` and returns a `Model`. Nothing here depends on an architecture family, and a stack
needs nothing of a request but the `Pass`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from spinf_core.quant.interface import Scheme
    from spinf_core.tokenizer import Tokenizer

IntArray = NDArray[np.int32]

CONTENT_TILE = 64
"""Content is worked on in tiles of this many rows counted from depth 0. A state kept inside a content can be continued with
more content only where a tile ends, so that the bits equal those of an unbroken run."""


@attrs.frozen(kw_only=True, eq=False)
class Pass:
    """Jobs laid out back to back over N rows, J jobs, R reads. Padding rows (`job` −1) see only themselves.

    Row q sees row k iff both belong to one job and (k ≤ q and q < end[k], or both have the same block ≥ 0); and it sees
    every ancestor in the past. A job's rows are its content, then the tries of its branches in pre-order.

    Attributes:
        ids: [N] token ids.
        depth: [N] rows before this one on its path, counted from the start of the content.
        positions: [A, N] rotary positions on A axes (1, or 3 for families that place images in a plane).
        parent: [N] the previous row on the path; −1 at a root (also where the parent lies in the past).
        end: [N] end of the row's subtree, exclusive.
        job: [N] the job a row belongs to.
        block: [N] id of an image block, consecutive rows of a content that see each other in layers where the family says
            so; −1 elsewhere.
        segments: [J, 3] start, cut row, stop: rows [start, cut row) are content, [cut row, stop) come after the cut.
        cut: [J] tokens of the whole content, those in the past included: the depth of the first row after the cut.
        base: [J] the row of the past state that the job continues, −1 for none.
        reads: [R] the rows whose hidden state is wanted, ascending.
        embedded_rows: [E] rows whose embedding is given rather than looked up.
        embedded: [E, hidden] those embeddings, on the model's device, or None.
    """

    ids: IntArray
    depth: IntArray
    positions: IntArray
    parent: IntArray
    end: IntArray
    job: IntArray
    block: IntArray
    segments: IntArray
    cut: IntArray
    base: IntArray
    reads: IntArray
    embedded_rows: IntArray = attrs.field(factory=lambda: np.empty(0, np.int32))
    embedded: Tensor | None = None

    @property
    def rows(self) -> int:
        """N, padding included."""
        return len(self.ids)


class State(ABC):
    """What rows of later passes may have as ancestors: keys and values, recurrent and convolution state, of kept rows."""

    rows: int
    """How many rows are kept; `Pass.base` indexes them."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Device memory held."""

    @abstractmethod
    def fork(self, rows: Sequence[int]) -> State:
        """A state of these kept rows, in this order; a row may come more than once. The original stays valid."""

    @abstractmethod
    def free(self) -> None:
        """Give the memory back; the state cannot be used afterwards."""


@attrs.frozen
class Operation:
    """One row-wise piece of a model for the self-test: `call` maps [M, width] to [M, …], each row from its own row alone."""

    name: str
    width: int
    dtype: torch.dtype
    call: Callable[[Tensor], Tensor]


class Model(ABC):
    """A checkpoint, loaded.

    Attributes:
        tokenizer: the checkpoint's own.
        vocab_size: V, the columns of the head.
        hidden_size: width of the hidden rows that `forward` gives and `read` takes.
        max_positions: longest path, content included, that the architecture allows.
        head: `lm_head` or `readout`.
        capabilities: of `score`, `extract`, `generate`.
        media: kinds that the stack can place in a content: of `image`, `audio`, `video`.
        axes: rotary axes of `Pass.positions`.
        numerics: raised whenever the stack's arithmetic changes; it enters the fingerprint.
        device: where the weights are.
        dtype: of the hidden rows.
    """

    tokenizer: Tokenizer
    vocab_size: int
    hidden_size: int
    max_positions: int
    head: Literal["lm_head", "readout"] = "lm_head"
    capabilities: frozenset[str] = frozenset({"score"})
    media: frozenset[str] = frozenset()
    axes: int = 1
    numerics: int = 1
    device: torch.device
    dtype: torch.dtype

    @abstractmethod
    def forward(self, pass_: Pass, past: State | None = None, keep: Sequence[int] | None = None) -> tuple[Tensor, State | None]:
        """Run a pass.

        Args:
            pass_: the rows to run.
            past: a state that `pass_.base` refers to.
            keep: rows of the pass whose state is wanted.

        Returns:
            hidden [R, hidden_size], the final-normed rows `pass_.reads` in their order; and the state of `keep` (None
            where it was None), whose kept rows are in the order of `keep`.
        """

    @abstractmethod
    def read(self, hidden: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Read the head.

        Args:
            hidden: [B, hidden_size], B one of the listed sizes.
            rows: [P] int64, the row of `hidden` of each wanted value.
            columns: [P] int64, its column of the vocabulary.

        Returns:
            logits [P] and the log of the sum of their exponentials over the vocabulary [B], float32, soft-capping included.
        """

    @abstractmethod
    def operations(self) -> Iterable[Operation]:
        """Each distinct row-wise shape that a pass runs (products, norms, activations), once, for the self-test."""


@attrs.frozen(kw_only=True)
class LoadContext:
    """What a stack's factory is given.

    Attributes:
        folder: the checkpoint: `config.json`, `tokenizer.json`, `*.safetensors`.
        config: the parsed `config.json`.
        device: where to put the weights.
        scheme: supplies the linear layers; see `spinf_core.quant.interface`.
        head_precision: of the LM head, see `spinf_core.nn.head`.
        options: research knobs, `--stack-options`; a stack refuses those it does not know.
        settings: an instance of the record's settings class, or None.
    """

    folder: Path
    config: Mapping[str, Any]
    device: torch.device
    scheme: Scheme
    head_precision: Literal["f32out", "bf16", "fp32"] = "f32out"
    options: Mapping[str, str] = attrs.field(factory=dict)
    settings: object | None = None
