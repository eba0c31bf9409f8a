"""The packs of a request: looked up, checked against it, their context put around every content, their questions added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from spinf_core.errors import Rejected
from spinf_core.packs.catalog import Catalog, Enabled
from spinf_core.packs.contexts import Surroundings, check_names, parameter_values, surroundings, wrap
from spinf_core.packs.evaluate import Answers, Override
from spinf_core.packs.file import Pack
from spinf_core.protocol import ParsedInput, ParsedRequest
from spinf_core.protocol.parse import MEDIA_KIND, content_text
from spinf_core.protocol.request import PackDecision, PackEntry, TextPart
from spinf_core.protocol.text import join, quoted, segment


@attrs.frozen(kw_only=True, eq=False)
class PackRun:
    """A pack in one request.

    Attributes:
        version: what is run. context: the name of the context.
        override: of the decision.
        include_queries: whether the answers themselves are in the result.
        param: path of the entry.
    """

    version: Enabled
    context: str
    override: Override
    include_queries: bool
    param: str

    @property
    def pack(self) -> Pack:
        """What is run."""
        return self.version.pack

    def result(self, answers: Answers) -> dict[str, Any]:
        """The public result on one content whose answers are in."""
        head = {"id": self.pack.id, "version": self.pack.version, "context": self.context}
        return head | self.version.evaluator.evaluate(answers, self.override).to_dict()


def with_packs(request: ParsedRequest, catalog: Catalog) -> tuple[ParsedRequest, tuple[PackRun, ...]]:
    """The request with its packs' context around every content and their queries behind the caller's own.

    Raises:
        Rejected: for the first entry, query or input that does not go with the packs.
    """
    if not request.packs:
        return request, ()
    runs = tuple(_run(entry, f"scoring.packs.{number}", catalog) for number, entry in enumerate(request.packs))
    _check_together(runs)
    _check_own_queries(request, runs)
    inputs = tuple(_input(entry, request, runs) for entry in request.inputs)
    return attrs.evolve(request, inputs=inputs), runs


def _run(entry: PackEntry, param: str, catalog: Catalog) -> PackRun:
    version = catalog.find(entry.id, entry.version, param)
    pack = version.pack
    context = next(iter(pack.contexts)) if entry.context is None else entry.context
    if context not in pack.contexts:
        where = f"{param}.context"
        message = f"{where}: pack {pack.id} has no context {quoted(context)}; there is {', '.join(pack.contexts)}"
        raise Rejected("invalid_field", message, where)
    override = _override(entry.decision, pack, f"{param}.decision")
    return PackRun(version=version, context=context, override=override, include_queries=entry.include_queries, param=param)


def _override(decision: PackDecision | None, pack: Pack, param: str) -> Override:
    if decision is None:
        return Override()
    assert pack.decision is not None
    modes = (*pack.decision.modes, "max") if decision.threshold is not None else pack.decision.modes
    if decision.mode is not None and decision.mode not in modes:
        where = f"{param}.mode"
        message = f"{where}: pack {pack.id} cannot decide by {decision.mode}; it can by {', '.join(pack.decision.modes)}"
        raise Rejected("invalid_field", message, where)
    for name in decision.thresholds or {}:
        _check_category(name, pack, f"{param}.thresholds.{segment(name)}")
    for number, name in enumerate(decision.critical or ()):
        _check_category(name, pack, f"{param}.critical.{number}")
    return Override(
        mode=decision.mode,
        threshold=decision.threshold,
        thresholds=decision.thresholds or {},
        critical=decision.critical,
    )


def _check_category(name: str, pack: Pack, param: str) -> None:
    if name not in pack.categories:
        message = f"{param}: pack {pack.id} has no category {quoted(name)}; there is {', '.join(pack.categories)}"
        raise Rejected("unknown_category", message, param)


def _check_together(runs: tuple[PackRun, ...]) -> None:
    first = runs[0].pack
    keys: set[str] = set()
    shown: dict[str, str] = {}
    for run in runs:
        if run.pack.key in keys:
            raise Rejected("duplicate_id", f"{run.param}.id repeats pack {run.pack.key}", f"{run.param}.id")
        keys.add(run.pack.key)
        if run.pack.case_insensitive != first.case_insensitive:
            message = f"{run.param}: packs {first.id} and {run.pack.id} differ in whether case matters; send one call for each"
            raise Rejected("pack_conflict", message, f"{run.param}.id")
        for query in run.pack.queries if run.include_queries else ():
            if shown.setdefault(query.id, run.pack.id) != run.pack.id:
                where = f"{run.param}.include_queries"
                message = f"{where}: packs {shown[query.id]} and {run.pack.id} both have a query {quoted(query.id)}"
                raise Rejected("pack_conflict", f"{message}; include the queries of one of them", where)


def _check_own_queries(request: ParsedRequest, runs: tuple[PackRun, ...]) -> None:
    ids = {query.id: run.pack.id for run in runs for query in run.pack.queries}
    groups = {run.pack.key for run in runs}
    for entry in request.inputs:
        for query in entry.queries:
            if query.id in ids:
                where = f"{query.param}.id"
                message = f"{where}: {quoted(query.id)} is a query of pack {ids[query.id]}; name yours otherwise"
                raise Rejected("duplicate_id", message, where)
            if query.group in groups:
                where = f"{query.param}.group"
                message = f"{where}: the group {quoted(query.group)} is a pack's of this call; name yours otherwise"
                raise Rejected("reserved_group", message, where)


def _input(entry: ParsedInput, request: ParsedRequest, runs: tuple[PackRun, ...]) -> ParsedInput:
    for run in runs:
        _check_media(entry, run.pack)
    parameters = join(entry.param, "parameters")
    check_names([run.pack for run in runs], entry.parameters, parameters)
    around = _common(runs, lambda run: _surroundings(run, entry, parameters))
    messages = wrap(entry.messages, around)
    queries = (*entry.queries, *(query for run in runs for query in run.pack.queries))
    prompts = sum(len(query.combinations) for query in queries)
    if prompts > request.limits.max_prompts_per_input:
        most = request.limits.max_prompts_per_input
        message = f"scoring.packs: packs and queries make {prompts} prompts for an input; at most {most} may be"
        raise Rejected("too_many_prompts", message, "scoring.packs")
    return attrs.evolve(entry, messages=messages, content=content_text(messages), queries=queries)


def _surroundings(run: PackRun, entry: ParsedInput, param: str) -> Surroundings:
    try:
        values = parameter_values(run.pack, entry.parameters, param)
    except Rejected as error:
        if entry.param:
            raise
        # One content alone has no place for parameters.
        message = f"{error.message}; send the content in inputs, with its parameters"
        raise Rejected(error.code, message, f"{run.param}.context") from None
    return surroundings(run.pack, run.context, values)


def _common(runs: tuple[PackRun, ...], of: Callable[[PackRun], Surroundings]) -> Surroundings:
    first, *others = [of(run) for run in runs]
    for run, other in zip(runs[1:], others, strict=True):
        if other != first:
            where = f"{run.param}.context"
            message = (
                f"{where}: packs {runs[0].pack.id} ({runs[0].context}) and {run.pack.id} ({run.context}) put different texts "
                "around the content; send one call for each"
            )
            raise Rejected("pack_conflict", message, where)
    return first


def _check_media(entry: ParsedInput, pack: Pack) -> None:
    for index, message in enumerate(entry.messages):
        for place, part in enumerate(message.content if isinstance(message.content, tuple) else ()):
            if not isinstance(part, TextPart) and MEDIA_KIND[part.type] not in pack.media:
                where = f"{entry.messages_param}.{index}.content.{place}"
                problem = f"{where}: pack {pack.id} reads {', '.join(pack.media)}, not {MEDIA_KIND[part.type]}"
                raise Rejected("pack_media_not_supported", problem, where)


def answers_of(shares: Mapping[tuple[str, str | None], Sequence[float]], pack: Pack) -> Answers:
    """A pack's answers from each option's share of its prompt's options, which is exp(logprob) normalised.

    A pack that says `logprob` takes it at full precision. One that says `p` takes the 6 decimals that are published: it was
    fitted on those, and whoever decides again from a stored response must get the same.
    """
    return {key: [round(p, 6) for p in share] for key, share in shares.items()} if pack.answers == "p" else shares
