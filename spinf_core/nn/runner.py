"""What every stack's `forward` does around its layers: lay the pass out, find the rows to keep, select the rows to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import torch
from torch import Tensor

from spinf_core.nn.attention import TreeAttention, tree_attention
from spinf_core.nn.graphs import PassGraphs
from spinf_core.nn.layout import KeptPaths, TreeLayout
from spinf_core.nn.state import LayerState, PathState, keep_paths
from spinf_core.stack import Pass, State


@attrs.frozen(eq=False)
class PassRun:
    """One pass on its way through a stack's layers.

    Attributes:
        layout: of the pass.
        past: the state that its jobs may continue.
        index: [K] where the rows to store lie in the joint space of past and pass, on the device; None where no state is kept.
        paths: of the kept rows in the new state.
    """

    layout: TreeLayout
    past: PathState | None
    index: Tensor | None
    paths: KeptPaths | None

    @classmethod
    def of(cls, pass_: Pass, past: State | None, keep: Sequence[int] | None, device: torch.device) -> PassRun:
        """For the arguments of `Model.forward`.

        Raises:
            ValueError: see `TreeLayout.build`.
        """
        assert past is None or isinstance(past, PathState)
        kept = past.paths if past else None
        layout = TreeLayout.build(pass_, kept, device)
        if keep is None:
            return cls(layout, past, None, None)
        paths, rows = keep_paths(pass_, layout.content_index, layout.previous, kept, keep)
        return cls(layout, past, torch.as_tensor(rows, device=device), paths)

    def before(self, number: int) -> LayerState | None:
        """A layer's part of the past."""
        return self.past.layers[number] if self.past else None

    def read(self, normed: Tensor) -> Tensor:
        """[N, hidden] -> [R, hidden], the rows to read."""
        return normed.index_select(0, self.layout.on_device["reads"])

    def state(self, layers: Sequence[LayerState]) -> PathState | None:
        """The new state, of every layer's part; None where none is kept."""
        return PathState(self.paths, layers) if self.paths is not None else None


class AttentionLayers(Protocol):
    """The layers of a stack whose rows meet in tree attention alone."""

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor,
        attention: TreeAttention,
        wanted: Tensor | None = None,
        past: PathState | None = None,
        index: Tensor | None = None,
    ) -> tuple[Tensor, list[LayerState]]:
        """ids [N], positions [A, N] -> the final-normed stream, [N, hidden] or that of the `wanted` rows, and the layers' state
        of the rows at `index`."""
        ...


class AttentionRunner:
    """Runs such layers; a pass without a past and without rows to keep is recorded, where that is quicker.

        self.runner = AttentionRunner(self.device)
        …
        def forward(self, pass_, past=None, keep=None):
            return self.runner.run(self._layers, pass_, past, keep)

    Args:
        device: of the model.
        record: whether its layers may be recorded: all they do is on the device, whatever the values are.
    """

    def __init__(self, device: torch.device, *, record: bool = True) -> None:
        self._device = device
        self._graphs = PassGraphs(record=record)

    def run(
        self, layers: AttentionLayers, pass_: Pass, past: State | None, keep: Sequence[int] | None
    ) -> tuple[Tensor, PathState | None]:
        """Run a pass through the layers, the same at every call; see `Model.forward`."""
        run = PassRun.of(pass_, past, keep, self._device)
        if past is None and keep is None:
            return self._graphs.run(run.layout, lambda *inputs: layers(*inputs)[0]), None
        there = run.layout.on_device
        normed, states = layers(there["ids"], there["positions"], tree_attention(run.layout), None, run.past, run.index)
        return run.read(normed), run.state(states)
