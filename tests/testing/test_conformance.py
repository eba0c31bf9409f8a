"""The conformance suite passes the toy, and fails each kind of fault that it is there to find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from spinf_core.nn.layout import TreeLayout
from spinf_core.nn.norm import RMSNorm
from spinf_core.nn.state import LayerState, PathState
from spinf_core.stack import Model, Operation, Pass, State
from spinf_core.testing.conformance import (
    Oracle,
    StackConformance,
    check_contract,
    check_invariance,
    check_odd_passes,
    check_oracle,
    check_past,
)
from spinf_core.testing.toy import HIDDEN, ToyModel


class TestToy(StackConformance):
    @pytest.fixture(scope="class", params=[None, 7, 70], ids=["no window", "window 7", "window 70"])
    @classmethod
    def model(cls, request: pytest.FixtureRequest) -> Model:
        return ToyModel(window=request.param)

    @pytest.fixture(scope="class")
    @classmethod
    def oracle(cls, model: ToyModel) -> Oracle:
        return model.oracle


class Faulty(ToyModel):
    """A toy that changes each pass before it runs, but not what is read."""

    def change(self, pass_: Pass) -> Pass:
        return pass_

    def forward(self, pass_: Pass, past: State | None = None, keep: Sequence[int] | None = None) -> tuple[Tensor, State | None]:
        return super().forward(self.change(pass_), past, keep)


class SeesTheSiblingBefore(Faulty):
    """Every root of a branch hangs on the branch before it."""

    def change(self, pass_: Pass) -> Pass:
        parent = pass_.parent.copy()
        for _, cut_row, stop in pass_.segments:
            roots = [row for row in range(cut_row + 1, stop) if parent[row] == (cut_row - 1 if cut_row else -1)]
            parent[roots] = np.array(roots, np.int32) - 1
        return attrs.evolve(pass_, parent=parent)


class TapsOfTheRowBefore(ToyModel):
    """The short convolution reads the rows before a row of the pass, not those before it on its path."""

    def _delta(self, x: Tensor, layout: TreeLayout, past: Any, keep: Any) -> Any:
        rows = np.arange(layout.rows, dtype=np.int32)
        parent = np.where(layout.pass_.parent >= 0, rows - 1, -1).astype(np.int32)
        false = attrs.evolve(layout, pass_=attrs.evolve(layout.pass_, parent=parent))
        return super()._delta(x, _OtherTaps(layout, false.taps), past, keep)  # type: ignore[arg-type]


class _OtherTaps:
    """A layout but for its taps."""

    def __init__(self, layout: TreeLayout, taps: Callable[[int], Any]) -> None:
        self._layout = layout
        self.taps = taps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layout, name)


class StateOfTheJobBefore(ToyModel):
    """The recurrence begins with what the job before has left."""

    def _delta(self, x: Tensor, layout: TreeLayout, past: Any, keep: Any) -> Any:
        out, state = super()._delta(x, layout, past, keep)
        leaked = out.clone()
        for (_, _, stop), (start, _, end) in zip(layout.pass_.segments[:-1], layout.pass_.segments[1:], strict=True):
            leaked[start:end] += 1e-3 * out[stop - 1]
        return leaked, state


class NormOverThePass(ToyModel):
    """The last norm scales by a mean over all rows."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        own = self.norms[2]

        class Mean(RMSNorm):
            def __call__(self, x: Tensor) -> Tensor:
                return own(x) * (1 + 1e-4 * torch.tanh(x.mean()))

        self.norms[2] = Mean(own.weight, own.eps)


class RotaryByRow(Faulty):
    """Positions are row numbers of the pass."""

    def change(self, pass_: Pass) -> Pass:
        return attrs.evolve(pass_, positions=np.arange(pass_.rows, dtype=np.int32)[None])


class RotaryWithoutTheContent(Faulty):
    """Positions start anew behind the cut."""

    def change(self, pass_: Pass) -> Pass:
        positions = pass_.positions.copy()
        for job, (_, cut_row, stop) in enumerate(pass_.segments):
            positions[0, cut_row:stop] -= pass_.cut[job]
        return attrs.evolve(pass_, positions=positions)


class KeepsTheRowBefore(ToyModel):
    """The recurrent state kept for a row is that of the row before it."""

    def _delta(self, x: Tensor, layout: TreeLayout, past: Any, keep: Sequence[int] | None) -> tuple[Tensor, LayerState]:
        out, _ = super()._delta(x, layout, past, None)
        before = None if keep is None else [max(int(row) - 1, 0) for row in keep]
        return out, super()._delta(x, layout, past, before)[1]


class ForksTheFirstRow(ToyModel):
    """A fork gives the recurrent state of the first kept row, whichever was asked for."""

    def forward(self, pass_: Pass, past: State | None = None, keep: Sequence[int] | None = None) -> tuple[Tensor, State | None]:
        hidden, state = super().forward(pass_, past, keep)
        if isinstance(state, PathState):
            attention, delta = state.layers
            state.layers = (attention, LayerState(kept=tuple(values[:1].expand_as(values) for values in delta.kept)))
        return hidden, state


class LosesTheTaps(ToyModel):
    """What the short convolution has seen before a kept row is forgotten."""

    def _delta(self, x: Tensor, layout: TreeLayout, past: Any, keep: Sequence[int] | None) -> tuple[Tensor, LayerState]:
        if past is not None:
            past = LayerState(kept=(past.kept[0], torch.zeros_like(past.kept[1])))
        return super()._delta(x, layout, past, keep)


class WindowTooWide(ToyModel):
    """Sees one row more than its window."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        assert self.window is not None
        self.window += 1


class ForgetsTheWindow(ToyModel):
    """Sees everything."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.window = None


class ProductByBatch(ToyModel):
    """A product whose rounding depends on the number of rows."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        product = self.delta_out

        class Wavering:
            in_features = product.in_features

            def __call__(self, x: Tensor) -> Tensor:
                return product(x) * (1 + 1e-6 * (len(x) % 32 == 0))

        self.delta_out = Wavering()  # type: ignore[assignment]


class HeadByBatch(ToyModel):
    """A head whose normaliser depends on the number of rows in its block."""

    def read(self, hidden: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        logits, normaliser = super().read(hidden, rows, columns)
        return logits, normaliser + 1e-5 * len(hidden)


class HiddenWithoutReads(ToyModel):
    """Gives every row where nothing is read."""

    def forward(self, pass_: Pass, past: State | None = None, keep: Sequence[int] | None = None) -> tuple[Tensor, State | None]:
        if not len(pass_.reads):
            return torch.zeros(pass_.rows, HIDDEN), None
        return super().forward(pass_, past, keep)


class NoOperations(ToyModel):
    def operations(self) -> list[Operation]:
        return []


class UnknownCapability(ToyModel):
    capabilities = frozenset({"score", "sing"})


WINDOW = {"window": 7}
FAULTS: list[tuple[type[ToyModel], dict[str, Any], Callable[..., None], str]] = [
    (SeesTheSiblingBefore, {}, check_oracle, "a log-probability is off"),
    (TapsOfTheRowBefore, {}, check_oracle, "a log-probability is off"),
    (TapsOfTheRowBefore, {}, check_invariance, "siblings are taken away"),
    (StateOfTheJobBefore, {}, check_oracle, "a log-probability is off"),
    (StateOfTheJobBefore, {}, check_invariance, "changes when packed after others"),
    (NormOverThePass, {}, check_invariance, "changes when packed"),
    (RotaryByRow, {}, check_oracle, "a log-probability is off"),
    (RotaryByRow, {}, check_invariance, "changes when packed after others"),
    (RotaryWithoutTheContent, {}, check_oracle, "a log-probability is off"),
    (KeepsTheRowBefore, {}, check_past, "continued from its middle differs in bits"),
    (LosesTheTaps, {}, check_past, "continued from the cut differs in bits"),
    (ForksTheFirstRow, {}, check_past, "continued from its middle differs in bits"),
    (WindowTooWide, WINDOW, check_oracle, "a log-probability is off"),
    (ForgetsTheWindow, WINDOW, check_oracle, "a log-probability is off"),
    (ProductByBatch, {}, check_invariance, "gated delta output: rows change"),
    (HeadByBatch, {}, check_invariance, "head: rows change"),
    (HiddenWithoutReads, {}, check_odd_passes, "without reads gave hidden rows"),
    (NoOperations, {}, check_contract, "no operations"),
    (UnknownCapability, {}, check_contract, "unknown capabilities .'score', 'sing'."),
]


@pytest.mark.parametrize(
    ("fault", "fields", "check", "finding"), FAULTS, ids=[f"{fault.__name__}-{check.__name__}" for fault, _, check, _ in FAULTS]
)
def test_a_planted_fault_is_found(
    fault: type[ToyModel], fields: dict[str, Any], check: Callable[..., None], finding: str
) -> None:
    model = fault(**fields)
    arguments = (ToyModel(**fields).oracle, 1e-4) if check is check_oracle else ()
    with pytest.raises(AssertionError, match=finding):
        check(model, *arguments)
