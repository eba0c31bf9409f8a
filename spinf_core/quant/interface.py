"""What a quantization scheme is.

A scheme's factory takes a `SchemeContext` and returns a `Scheme`. A stack asks the scheme for every linear by the name that its
weight has in the checkpoint; embeddings, norms and heads it takes itself, in `scheme.dtype`.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import torch

from spinf_core.nn.linear import Linear
from spinf_core.weights import Weights


@attrs.frozen(kw_only=True)
class SchemeContext:
    """What a scheme's factory is given.

    Attributes:
        name: the scheme asked for; one factory may serve several.
        device: where the weights will be.
        settings: an instance of the record's settings class, or None.
        revision: of the checkpoint, for what was made for one alone; empty where it is not known.
    """

    name: str
    device: torch.device
    settings: object | None = None
    revision: str = ""


class Scheme(Protocol):
    """Supplies linears for named weights.

    A scheme may also have `source`, a text that moves with what else moves its scores, such as a hash of scales that do not
    come from the checkpoint; it enters the fingerprint.

    Attributes:
        name: as registered.
        dtype: of activations between layers, norms and embeddings.
        invariant: whether a row of every linear depends on that row alone.
        numerics: raised whenever its arithmetic changes; it enters the fingerprint.
    """

    name: str
    dtype: torch.dtype
    invariant: bool
    numerics: int

    def linear(self, weights: Weights, names: tuple[str, ...], out_features: tuple[int, ...], in_features: int) -> Linear:
        """One linear over the rows of several weights laid one under another (q, k and v, say), or of just one.

        Args:
            weights: the checkpoint.
            names: of the modules, without the trailing `.weight`.
            out_features: of each.
            in_features: of all.

        Raises:
            SetupError: a tensor is missing or has another shape.
        """
        ...
