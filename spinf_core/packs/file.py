"""The pack file as frozen attrs classes, and how one is read.

The classes hold what was checked; what a pack's lock covers is the JSON itself, which `Pack.raw` keeps.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
from cattrs import Converter

from spinf_core.errors import SetupError
from spinf_core.packs.validate import is_draft, problems
from spinf_core.protocol import Template
from spinf_core.protocol.combinations import expand
from spinf_core.protocol.queries import ParsedQuery
from spinf_core.protocol.request import Query

MAX_BYTES = 16 * 2**20

Json = Mapping[str, Any]
Mode = Literal["max", "per_category", "micro_layer"]
Fallback = Literal["max", "per_category"]


class PackError(SetupError):
    """A file that is no pack, with every problem found, one line each.

    Args:
        where: the file. problems: in the author's terms.
    """

    def __init__(self, where: str, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(f"{where}: {problem}" for problem in problems))
        self.problems = problems


@attrs.frozen(kw_only=True)
class Parameter:
    """A value that a caller gives for a placeholder of a context.

    Attributes:
        label, description: for people.
        required: whether a call without a value is refused, where there is no default.
        default: what stands for a value that was not given.
    """

    label: str = ""
    description: str = ""
    required: bool = True
    default: str | None = None


@attrs.frozen(kw_only=True)
class Read:
    """One number taken from one answer, and the category that it counts for.

    Attributes:
        query, F: whose answer; `F` is the value of the query's placeholder of that name, None where it has none.
        kind: `pair` compares the first two options, `option` takes one, `any` sets all others against the first, `set` some
            against the rest.
        sign: of a pair, 1 or −1: which of the two speaks for the category.
        option: the index of a single option. unsafe: the indexes of a set.
        mu: what is taken off `ln p` of each option: a number for `option`, one for each option for `any` and `set`.
        mean, sd: of the value over normal traffic.
        view: the view of the category that the read belongs to.
    """

    id: str
    query: str
    F: str | None = None
    kind: Literal["pair", "option", "any", "set"]
    sign: float = 1
    option: int = 0
    unsafe: tuple[int, ...] = ()
    mu: Any = None
    mean: float
    sd: float
    category: str
    view: str | None = None


@attrs.frozen(kw_only=True)
class Quantiles:
    """Scores of normal traffic: at each level, the score that so much of it stays below."""

    levels: tuple[float, ...]
    values: tuple[float, ...]


@attrs.frozen(kw_only=True)
class Category:
    """What a content may be.

    Attributes:
        label: for people.
        platt: (a, b) of score = sigmoid(a · macro + b).
        threshold: the score from which the category is flagged; None: it is reported only.
        normal_quantiles: what percentiles are read from.
        aggregate: `views` averages the reads of each view first.
        requires: categories without which this one is not flagged.
        decides: whether the category counts in the decision.
    """

    label: str = ""
    platt: tuple[float, float]
    threshold: float | None = None
    normal_quantiles: Quantiles | None = None
    aggregate: Literal["mean", "views"] = "mean"
    requires: tuple[str, ...] = ()
    decides: bool = True


@attrs.frozen(kw_only=True)
class MaxDecision:
    """Unsafe from this score of the highest deciding category on."""

    threshold: float


@attrs.frozen(kw_only=True)
class MicroLayer:
    """A small network over category macros (`c:NAME`) and read z-values (`r:ID`); see `microlayer`."""

    inputs: tuple[str, ...]
    hidden: int = 0
    dtype: str = "float32"
    weights: str
    lock: str = ""


@attrs.frozen(kw_only=True)
class Decision:
    """How category scores become safe or unsafe.

    Attributes:
        mode: what decides. fallback: what decides where the micro-layer's lock does not fit.
        max, micro_layer: what those modes need; None where the pack does not have them.
        critical: categories that force unsafe when they are flagged.
    """

    mode: Mode
    fallback: Fallback = "per_category"
    max: MaxDecision | None = None
    micro_layer: MicroLayer | None = None
    critical: tuple[str, ...] = ()

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that a call may choose."""
        found: list[Mode] = ["per_category"]
        if self.max is not None:
            found.insert(0, "max")
        if self.micro_layer is not None:
            found.append("micro_layer")
        return tuple(found)


@attrs.frozen(kw_only=True, eq=False)
class Pack:
    """A pack that was read from its file.

    Attributes:
        id: `namespace/name`. version: of the pack. model: id or alias of the model that it was calibrated on.
        media: kinds of content that it was calibrated on.
        answers: whether answers are the published `p`, of 6 decimals, or full-precision log-probabilities.
        parameters: of the contexts. contexts: the content's surroundings, by name, `{X}` standing for it; the first is the
            default.
        queries: as a request would hold them; they are the same objects for as long as the pack lives.
        reads, categories, decision: from answers to the result; empty and None in a draft.
        draft: whether the constants are yet to be fitted, so that the pack can be asked but not evaluated.
        raw: the file's JSON.
    """

    id: str
    version: str
    model: str
    media: tuple[str, ...]
    answers: Literal["p", "logprob"]
    parameters: Mapping[str, Parameter]
    contexts: Mapping[str, str]
    queries: tuple[ParsedQuery, ...]
    reads: tuple[Read, ...]
    categories: Mapping[str, Category]
    decision: Decision | None
    draft: bool
    raw: Json = attrs.field(repr=False)

    @property
    def key(self) -> str:
        """`id@version`, which is also the query group that the pack's questions run in."""
        return f"{self.id}@{self.version}"

    @property
    def case_insensitive(self) -> bool:
        """Whether an option stands for its case variants too; off unless the file says otherwise."""
        return bool(self.raw["scoring"].get("case_insensitive", False))

    @functools.cached_property
    def prompts(self) -> int:
        """Filled templates for one content."""
        return sum(len(query.combinations) for query in self.queries)


def read_pack(path: Path) -> Pack:
    """Read a pack file.

    Raises:
        PackError: with every problem found.
    """
    return pack_of(path.name, load_json(path))


def load_json(path: Path) -> object:
    """The JSON value of a file of at most `MAX_BYTES`.

    Raises:
        PackError: it is larger, cannot be read, or is no JSON.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PackError(path.name, (f"cannot be read: {error.strerror}",)) from None
    if len(content) > MAX_BYTES:
        raise PackError(path.name, (f"is larger than {MAX_BYTES // 2**20} MiB, the most that a pack may be",))
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise PackError(path.name, (f"is not JSON: {error or 'nested too deeply'}",)) from None


def pack_of(where: str, value: object) -> Pack:
    """The pack that a JSON value holds.

    Args:
        where: what errors call the file.
        value: the JSON value.

    Raises:
        PackError: with every problem found.
    """
    found = problems(value)
    if found:
        raise PackError(where, tuple(found))
    assert isinstance(value, Mapping)
    draft = is_draft(value)
    scoring = value["scoring"]
    group = f"{value['pack']}@{value['version']}"
    return Pack(
        id=value["pack"],
        version=value["version"],
        model=value.get("model") or "",
        media=tuple(value.get("media") or ("text",)),
        answers=value.get("answers") or "p",
        parameters=_structured(value.get("parameters") or {}, dict[str, Parameter]),
        contexts=dict(value["contexts"]),
        queries=tuple(_query(query, number, scoring, group) for number, query in enumerate(scoring["queries"])),
        reads=() if draft else _structured(value["reads"], tuple[Read, ...]),
        categories={} if draft else _structured(value["categories"], dict[str, Category]),
        decision=None if draft else _structured(value["decision"], Decision),
        draft=draft,
        raw=value,
    )


def _query(query: Json, number: int, scoring: Json, group: str) -> ParsedQuery:
    typed = Query(
        id=query["id"],
        template=query["template"],
        options=tuple(query["options"]),
        combinations=_combinations(query.get("combinations")),
        values=query.get("values"),
    )
    param = f"{group}.scoring.queries.{number}"
    template = Template.parse(typed.template, f"{param}.template")
    floors = (query.get("empty_floor"), scoring.get("empty_floor"), True)
    return ParsedQuery(
        id=typed.id,
        param=param,
        kind="scored",
        template=template,
        combinations=tuple(expand(typed, template, param)),
        options=tuple(query["options"]),
        empty_floor=next(floor for floor in floors if floor is not None),
        case_insensitive=bool(scoring.get("case_insensitive", False)),
        group=group,
        extraction=None,
        pack=group,
    )


def _combinations(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given


def _structured(value: Any, of: Any) -> Any:
    return _CONVERTER.structure(_without_nulls(value), of)


def _without_nulls(value: Any) -> Any:
    """A null stands for a member that is left out."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(member) for name, member in value.items() if member is not None}
    return [_without_nulls(element) for element in value] if isinstance(value, list) else value


def _converter() -> Converter:
    converter = Converter()
    # Every value was checked before; these two would otherwise be made of whatever stands there.
    converter.register_structure_hook(float, lambda value, _: float(value))
    converter.register_structure_hook(Any, lambda value, _: value)
    return converter


_CONVERTER = _converter()
