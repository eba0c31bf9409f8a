"""From the answers of one content to category scores and a decision.

Reads take a number from an answer and stand it against normal traffic; a category's macro is the mean of its reads, its score
a sigmoid of that; a mode decides over the scores, and critical categories have the last word.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from spinf_core.packs.file import Category, Mode, Pack, Quantiles, Read
from spinf_core.packs.microlayer import WARNING, layer_of, lock_fits

Answers = Mapping[tuple[str, str | None], Sequence[float]]
"""(query id, value of `{F}` or None) -> the probability of each option."""

LEAST_P = 1e-9
LEAST_PAIR_P = 1e-6
DECIMALS = 6


@attrs.frozen(kw_only=True)
class Override:
    """What one call changes in a pack's decision; None leaves it as it is.

    Attributes:
        mode: what decides.
        threshold: of the modes `max` and `micro_layer`.
        thresholds: of categories; None reports one only.
        critical: the categories that force unsafe.
    """

    mode: Mode | None = None
    threshold: float | None = None
    thresholds: Mapping[str, float | None] = attrs.field(factory=dict)
    critical: tuple[str, ...] | None = None


@attrs.frozen
class CategoryScore:
    """One category: its score, the percentile of that in normal traffic, and whether it is flagged (None: reported only)."""

    score: float
    percentile: float | None
    flagged: bool | None


@attrs.frozen
class Evaluation:
    """The result of a pack on one content, unrounded; `to_dict` gives the public JSON."""

    categories: Mapping[str, CategoryScore]
    decision: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Categories and decision, floats rounded to 6 decimals."""
        return {
            "categories": {
                name: {"score": _rounded(each.score), "percentile": _rounded(each.percentile), "flagged": each.flagged}
                for name, each in self.categories.items()
            },
            "decision": {name: _rounded(value) for name, value in self.decision.items()},
        }


class Evaluator:
    """Evaluates answers with one pack; may be used from several threads.

    Args:
        pack: with fitted constants.

    Raises:
        ValueError: the pack is a draft.
    """

    def __init__(self, pack: Pack) -> None:
        if pack.decision is None:
            raise ValueError(f"pack {pack.key} is a draft: it has no fitted constants, so it cannot be evaluated")
        self._decision = pack.decision
        self._categories = pack.categories
        self._reads = [(read.id, (read.query, read.F), _value_of(read), read.mean, read.sd) for read in pack.reads]
        self._views = {name: _views(name, category, pack.reads) for name, category in pack.categories.items()}
        self._locked = lock_fits(pack.raw)
        self._layer = layer_of(pack.decision.micro_layer) if pack.decision.micro_layer and self._locked else None

    def evaluate(self, answers: Answers, override: Override | None = None) -> Evaluation:
        """Evaluate one content.

        Args:
            answers: of every query that a read names; each is renormalised over its options.
            override: of the decision.

        Raises:
            KeyError: an answer is missing, or `override` names a category that the pack lacks.
        """
        override = override or Override()
        z = self._z(answers)
        macros = {name: _mean([_mean([z[read] for read in view]) for view in views]) for name, views in self._views.items()}
        thresholds = {name: category.threshold for name, category in self._categories.items()}
        for name, threshold in override.thresholds.items():
            if name not in thresholds:
                raise KeyError(f"no category {name!r}")
            thresholds[name] = threshold
        scores = {name: _sigmoid(each.platt[0] * macros[name] + each.platt[1]) for name, each in self._categories.items()}
        flagged = self._flagged(scores, thresholds)
        categories = {
            name: CategoryScore(scores[name], _percentile(each.normal_quantiles, scores[name]), flagged[name])
            for name, each in self._categories.items()
        }
        deciding = [name for name, each in self._categories.items() if thresholds[name] is not None and each.decides]
        return Evaluation(categories, self._decide(override, z, macros, scores, flagged, deciding))

    def _z(self, answers: Answers) -> dict[str, float]:
        shares: dict[tuple[str, str | None], list[float]] = {}
        z = {}
        for id_, key, value, mean, sd in self._reads:
            share = shares.get(key)
            if share is None:
                share = shares[key] = _normalised(answers[key])
            z[id_] = (value(share) - mean) / sd
        return z

    def _flagged(self, scores: Mapping[str, float], thresholds: Mapping[str, float | None]) -> dict[str, bool | None]:
        flagged = {
            name: None if (threshold := thresholds[name]) is None else score >= threshold for name, score in scores.items()
        }
        # In the order of the file: a category that stands earlier has been decided, a later one counts by its threshold.
        for name, category in self._categories.items():
            if flagged[name] and not all(flagged[other] for other in category.requires):
                flagged[name] = False
        return flagged

    def _decide(
        self,
        override: Override,
        z: Mapping[str, float],
        macros: Mapping[str, float],
        scores: Mapping[str, float],
        flagged: Mapping[str, bool | None],
        deciding: list[str],
    ) -> dict[str, Any]:
        mode = override.mode or self._decision.mode
        threshold = override.threshold
        warning = None
        if mode == "micro_layer" and self._layer is None:
            # A threshold that was sent is for the layer's value, not for a score.
            mode, threshold, warning = self._decision.fallback, None, WARNING
        decision: dict[str, Any] = {"unsafe": False, "mode": mode}
        if mode == "micro_layer":
            assert self._layer is not None
            assert self._decision.micro_layer is not None
            layer, own = self._layer
            kinds = {"c": macros, "r": z}
            inputs = [kinds[name[0]][name[2:]] for name in self._decision.micro_layer.inputs]
            score = layer(inputs)
            least = own if threshold is None else threshold
            decision |= {"unsafe": score >= least, "score": score, "threshold": least}
        elif mode == "max":
            if threshold is None:
                if self._decision.max is None:
                    raise KeyError("the pack has no threshold for the mode max")
                threshold = self._decision.max.threshold
            highest = max(deciding, key=scores.__getitem__, default=None)
            score = 0.0 if highest is None else scores[highest]
            unsafe = highest is not None and score >= threshold
            decision |= {"unsafe": unsafe, "score": score, "threshold": threshold, "category": highest}
        else:
            named = [name for name in deciding if flagged[name]]
            decision |= {"unsafe": bool(named), "categories": named}
        critical = self._decision.critical if override.critical is None else override.critical
        if forced := [name for name in critical if flagged.get(name)]:
            decision["critical"] = forced
            if not decision["unsafe"]:
                decision |= {"unsafe": True, "by": "critical"}
        if warning is not None:
            decision["warning"] = warning
        return decision


def _value_of(read: Read) -> Callable[[list[float]], float]:
    """The read's value as a function of the normalised answer."""
    sign, mu = read.sign, read.mu
    if read.kind == "pair":

        def pair(p: list[float]) -> float:
            share = min(max(p[0] / (p[0] + p[1]), LEAST_PAIR_P), 1 - LEAST_PAIR_P)
            return sign * math.log(share / (1 - share))

        return pair
    if read.kind == "option":
        index, offset = read.option, float(mu)
        return lambda p: math.log(p[index]) - offset
    unsafe = list(read.unsafe)
    if read.kind == "any":
        unsafe = list(range(1, len(mu)))
    rest = [index for index in range(len(mu)) if index not in unsafe]
    offsets = [float(number) for number in mu]

    def against(p: list[float]) -> float:
        a = [math.log(share) - offset for share, offset in zip(p, offsets, strict=True)]
        return _logsumexp([a[index] for index in unsafe]) - _logsumexp([a[index] for index in rest])

    return against


def _views(name: str, category: Category, reads: Sequence[Read]) -> tuple[tuple[str, ...], ...]:
    """The ids of a category's reads, view by view; all in one where it does not aggregate by views."""
    mine = [read for read in reads if read.category == name]
    if category.aggregate != "views":
        return (tuple(read.id for read in mine),)
    views = dict.fromkeys(read.view for read in mine if read.view)
    return tuple(tuple(read.id for read in mine if read.view == view) for view in views)


def _normalised(p: Sequence[float]) -> list[float]:
    floored = [each if each > LEAST_P else LEAST_P for each in p]
    total = sum(floored)
    return [each / total for each in floored]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _sigmoid(x: float) -> float:
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    power = math.exp(x)
    return power / (1 + power)


def _logsumexp(values: list[float]) -> float:
    if len(values) == 1:
        return values[0]
    highest = max(values)
    return highest + math.log(sum(math.exp(value - highest) for value in values))


def _percentile(quantiles: Quantiles | None, score: float) -> float | None:
    """Where the score lies among those of normal traffic, between the levels of the quantiles around it."""
    if quantiles is None:
        return None
    levels, values = quantiles.levels, quantiles.values
    if score <= values[0]:
        return levels[0]
    if score >= values[-1]:
        return levels[-1]
    above = bisect_right(values, score)
    low, high = values[above - 1], values[above]
    return levels[above - 1] + (levels[above] - levels[above - 1]) * (score - low) / (high - low)


def _rounded(value: Any) -> Any:
    return round(value, DECIMALS) + 0.0 if isinstance(value, float) else value
