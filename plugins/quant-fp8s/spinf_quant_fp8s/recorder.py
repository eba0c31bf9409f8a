"""A scheme that runs unquantized and notes, for every linear, the largest magnitude that it is given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from spinf_core.checkpoints.integrity import summarize
from spinf_core.errors import SetupError
from spinf_core.nn.layout import READ_ROWS
from spinf_core.nn.linear import InputFormat, Linear
from spinf_core.quant.interface import Scheme
from spinf_core.stack import Pass
from spinf_core.weights import Weights

Names = tuple[str, ...]


class Recorder:
    """Wraps an unquantized scheme. Only rows of real tokens count, and only inside `watching`.

        recorder = Recorder(Unquantized("bf16"))
        model = …  # built with the recorder as its scheme
        with recorder.watching(pass_):
            model.forward(pass_)
        recorder.largest()

    Args:
        scheme: supplies the linears; it must take its inputs as they are.
    """

    invariant = True

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme
        self.name, self.dtype, self.numerics = scheme.name, scheme.dtype, scheme.numerics
        self._linears: list[Names] = []
        self._seen: dict[Names, Tensor] = {}
        self._pass: Pass | None = None
        self._real: Tensor | None = None

    def linear(self, weights: Weights, names: Names, out_features: tuple[int, ...], in_features: int) -> Linear:
        """See `Scheme.linear`; merged modules share an input and what is noted of it."""
        self._linears.append(names)
        return RecordingLinear(self, names, self._scheme.linear(weights, names, out_features, in_features))

    @contextmanager
    def watching(self, pass_: Pass) -> Iterator[None]:
        """Note what the linears are given while this pass runs.

        Raises:
            SetupError: at its end, where an input was not a finite number, naming the first such linear.
        """
        self._pass = pass_
        try:
            yield
        finally:
            self._pass = self._real = None
        self._check_finite()

    def note(self, names: Names, x: Tensor) -> None:
        """Take the input [M, in] of a linear.

        Raises:
            SetupError: M is neither the pass's rows nor its reads, as they are or made up to a multiple of `READ_ROWS`, so that
                padding cannot be told.
        """
        if self._pass is None or not len(x):
            return
        largest = x.abs().amax(-1)
        if len(x) == self._pass.rows:
            if self._real is None:
                self._real = torch.as_tensor(self._pass.job >= 0, device=x.device)
            largest = torch.where(self._real, largest, torch.zeros_like(largest))
        elif len(x) not in (reads := len(self._pass.reads), reads + -reads % READ_ROWS):
            raise SetupError(
                f"{names[0]} is given {len(x):,} rows in a pass of {self._pass.rows:,}, so that padding cannot be told from "
                "tokens; the stack must give a linear every row of the pass, or those that are read"
            )
        found = largest.amax().float()
        before = self._seen.get(names)
        self._seen[names] = found if before is None else torch.maximum(before, found)

    def largest(self) -> dict[str, float]:
        """The largest magnitude of every module's input.

        Raises:
            SetupError: no pass reached some of them.
        """
        unreached = [name for names in self._linears if names not in self._seen for name in names]
        if unreached:
            raise SetupError(
                f"no request of the corpus reached {summarize(unreached)}, so that there is no scale for its inputs; add "
                "requests with other contents and questions"
            )
        return {name: value for names, value in self._values().items() for name in names}

    def _values(self) -> dict[Names, float]:
        """What was noted so far, fetched from the device at once."""
        if not self._seen:
            return {}
        return dict(zip(self._seen, torch.stack(list(self._seen.values())).tolist(), strict=True))

    def _check_finite(self) -> None:
        # The first that a pass meets is the cause; what comes after it inherits it.
        for names, value in self._values().items():
            if not math.isfinite(value):
                raise SetupError(
                    f"the input of {names[0]} holds {value}, in {self.name}; the checkpoint is damaged, or its activations do "
                    "not fit: fetch it again, or calibrate with --quant fp32"
                )


class RecordingLinear(Linear):
    """A linear that shows its inputs to the recorder."""

    def __init__(self, recorder: Recorder, names: Names, linear: Linear) -> None:
        self._recorder, self._names, self._linear = recorder, names, linear
        self.input_format: InputFormat | None = linear.input_format
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def __call__(self, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]."""
        self._recorder.note(self._names, x)
        return self._linear(x)
