"""Every problem of a pack file, one line each, in the terms of whoever wrote it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from spinf_core.packs.checks import Checks, shown
from spinf_core.packs.validate_request import QueryShape, check_contexts, check_queries
from spinf_core.packs.weights import check_micro_layer

ID = re.compile(r"[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*\Z")
MEDIA = ("text", "image", "audio", "video")
KINDS = ("pair", "option", "any", "set")
MODES = ("max", "per_category", "micro_layer")

_PACK = (
    *("pack", "version", "model", "media", "answers", "parameters", "contexts", "scoring", "reads", "categories"),
    *("decision", "name", "description"),
)
_READ = ("id", "query", "F", "kind", "sign", "option", "unsafe", "mu", "mean", "sd", "category", "view")
_CATEGORY = ("label", "platt", "threshold", "normal_quantiles", "aggregate", "requires", "decides")
_DECISION = ("mode", "fallback", "max", "per_category", "micro_layer", "critical")
_FITTED = ("mu", "mean", "sd")


def is_draft(pack: Mapping[str, Any]) -> bool:
    """Whether a file holds no fitted constant at all: no read's `mu`, `mean` or `sd`, no category's `platt`, no weights."""
    reads, categories, decision = pack.get("reads"), pack.get("categories"), pack.get("decision")
    if isinstance(reads, list) and any(isinstance(read, Mapping) and any(name in read for name in _FITTED) for read in reads):
        return False
    if isinstance(categories, Mapping) and any(isinstance(c, Mapping) and "platt" in c for c in categories.values()):
        return False
    micro = decision.get("micro_layer") if isinstance(decision, Mapping) else None
    return not (isinstance(micro, Mapping) and "weights" in micro)


def problems(value: object) -> list[str]:
    """The problems of a pack file's JSON value; none where it is a pack, or a draft whose request side is right.

    A lock that does not fit is no problem of the file: such a pack runs, with its fallback. See `microlayer.lock_of`.
    """
    if not isinstance(value, Mapping):
        return [f"a pack is a JSON object, not {shown(value)}"]
    found = Checks()
    found.known(value, _PACK, "")
    draft = is_draft(value)
    _check_head(found, value, draft)
    parameters = _check_parameters(found, value.get("parameters"))
    check_contexts(found, value.get("contexts"), parameters)
    queries = check_queries(found, value.get("scoring"))
    if not draft:
        categories = _check_categories(found, value.get("categories"))
        reads = _check_reads(found, value.get("reads"), queries, categories)
        _check_decision(found, value.get("decision"), categories, reads)
    return found.problems


def _check_head(found: Checks, pack: Mapping[str, Any], draft: bool) -> None:
    name = found.text(pack, "pack", "")
    if name is not None and not ID.match(name):
        found.add("pack", f"{shown(name)} is not a name like namespace/name in lower case: letters, digits, '.', '_' and '-'")
    version = found.text(pack, "version", "")
    if version is not None and not re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z.+_-]*", version):
        found.add("version", f"{shown(version)} is not a version like 0.1.0")
    found.text(pack, "model", "", required=not draft)
    media = found.texts(pack, "media", "", required=False)
    for number, kind in enumerate(media or ()):
        if kind not in MEDIA:
            found.add(f"media.{number}", f"{shown(kind)} is not a kind of content; there are {', '.join(MEDIA)}")
    if pack.get("answers") not in (None, "p", "logprob"):
        found.add("answers", f'must be "p" or "logprob", not {shown(pack["answers"])}')


def _check_parameters(found: Checks, value: object) -> frozenset[str]:
    if value is None:
        return frozenset()
    names = found.objects(value, "parameters")
    for name, parameter in names.items():
        where = f"parameters.{name}"
        if not re.fullmatch(r"[A-Za-z0-9_]+", name) or name == "X":
            found.add(where, "a parameter's name is made of letters, digits and _, and X is the content")
        found.known(parameter, ("label", "description", "required", "default"), where)
        found.text(parameter, "label", where)
        found.text(parameter, "description", where, required=False, empty=True)
        found.text(parameter, "default", where, required=False, empty=True)
        found.boolean(parameter, "required", where)
    return frozenset(names)


def _check_categories(found: Checks, value: object) -> dict[str, Mapping[str, Any]]:
    categories = found.objects(value, "categories", least=1)
    for name, category in categories.items():
        where = f"categories.{name}"
        found.known(category, _CATEGORY, where)
        found.text(category, "label", where)
        found.numbers(category, "platt", where, count=2)
        if "threshold" not in category:
            found.add(f"{where}.threshold", "is missing; null reports the category only")
        elif category["threshold"] is not None:
            found.number(category, "threshold", where, least=0, most=1)
        _check_quantiles(found, category.get("normal_quantiles"), f"{where}.normal_quantiles")
        if category.get("aggregate") not in (None, "mean", "views"):
            found.add(f"{where}.aggregate", f'must be "views" or be left out, not {shown(category["aggregate"])}')
        found.boolean(category, "decides", where)
        for number, other in enumerate(found.texts(category, "requires", where, required=False) or ()):
            if other == name or other not in categories:
                what = "is the category itself" if other == name else "is no category of this pack"
                found.add(f"{where}.requires.{number}", f"{shown(other)} {what}")
    return categories


def _check_quantiles(found: Checks, value: object, where: str) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping):
        found.add(where, f"must be an object with levels and values, not {shown(value)}")
        return
    levels, values = (found.numbers(value, name, where) for name in ("levels", "values"))
    for name, numbers in (("levels", levels), ("values", values)):
        if numbers is not None and any(after < before for before, after in pairwise(numbers)):
            found.add(f"{where}.{name}", "must rise")
        if numbers is not None and not numbers:
            found.add(f"{where}.{name}", "is empty")
    if levels is not None and values is not None and len(levels) != len(values):
        found.add(where, f"has {len(levels)} levels and {len(values)} values; each level has one value")


def _check_reads(
    found: Checks, value: object, queries: Mapping[str, QueryShape], categories: Mapping[str, Mapping[str, Any]]
) -> frozenset[str]:
    if not isinstance(value, list) or not value:
        found.add("reads", f"must be a list of at least one read, not {shown(value)}")
        return frozenset()
    ids: set[str] = set()
    served: set[str] = set()
    for number, read in enumerate(value):
        where = f"reads.{number}"
        if not isinstance(read, Mapping):
            found.add(where, f"must be an object, not {shown(read)}")
            continue
        id_ = found.text(read, "id", where)
        if id_ is not None:
            where = f"read {id_}"
            if id_ in ids:
                found.add(where, "repeats the id of an earlier read")
            ids.add(id_)
        _check_read(found, read, where, queries)
        category = found.text(read, "category", where)
        if category is not None:
            served.add(category)
            if category not in categories:
                found.add(f"{where}.category", f"{shown(category)} is no category of this pack")
            elif categories[category].get("aggregate") == "views" and not read.get("view"):
                found.add(f"{where}.view", f"is missing; category {category} is aggregated by views")
    for name in sorted(categories.keys() - served):
        found.add(f"categories.{name}", "has no read, so it has no score")
    return frozenset(ids)


def _check_read(found: Checks, read: Mapping[str, Any], where: str, queries: Mapping[str, QueryShape]) -> None:
    found.known(read, _READ, where)
    found.text(read, "view", where, required=False)
    for field in ("mean", "sd"):
        found.number(read, field, where)
    if found.is_number(read.get("sd")) and read["sd"] <= 0:
        found.add(f"{where}.sd", f"must be above 0, not {shown(read['sd'])}")
    kind = read.get("kind")
    if kind not in KINDS:
        found.add(f"{where}.kind", f"must be one of {', '.join(KINDS)}, not {shown(kind)}")
    name = found.text(read, "query", where)
    query = queries.get(name) if name is not None else None
    if query is None:
        if name is not None:
            found.add(f"{where}.query", f"{shown(name)} is no query of this pack")
        return
    value = read.get("F")
    if query.values is None and value is not None:
        found.add(f"{where}.F", f"must be left out: query {name} has no placeholder {{F}}")
    elif query.values is not None and value not in query.values:
        found.add(f"{where}.F", f"{shown(value)} is none of the values of query {name}: {', '.join(query.values)}")
    _check_kind(found, read, where, kind, query.options)


def _check_kind(found: Checks, read: Mapping[str, Any], where: str, kind: object, options: int) -> None:
    if kind == "pair":
        if read.get("sign") not in (None, 1, -1) or isinstance(read.get("sign"), bool):
            found.add(f"{where}.sign", f"must be 1 or -1, not {shown(read['sign'])}")
        if "mu" in read and read["mu"] is not None and not found.is_number(read["mu"]):
            found.add(f"{where}.mu", "of a pair is a number, which is not used")
    elif kind == "option":
        _check_index(found, read.get("option"), f"{where}.option", options)
        found.number(read, "mu", where)
    elif kind in ("any", "set"):
        numbers = found.numbers(read, "mu", where)
        if numbers is not None and len(numbers) != options:
            found.add(f"{where}.mu", f"has {len(numbers)} numbers; the query has {options} options, and each has one")
    if kind == "set":
        unsafe = read.get("unsafe")
        if not isinstance(unsafe, list) or not unsafe:
            found.add(f"{where}.unsafe", f"must be a list of indexes of options, not {shown(unsafe)}")
            return
        for number, index in enumerate(unsafe):
            _check_index(found, index, f"{where}.unsafe.{number}", options)
        if len({str(index) for index in unsafe}) != len(unsafe):
            found.add(f"{where}.unsafe", "names an option twice")
        elif len(unsafe) >= options:
            found.add(f"{where}.unsafe", "names every option, so that none is left to compare with")


def _check_index(found: Checks, value: object, where: str, options: int) -> None:
    if type(value) is not int or not 0 <= value < options:
        found.add(where, f"must be an index of the query's options, 0 to {options - 1}, not {shown(value)}")


def _check_decision(found: Checks, value: object, categories: Mapping[str, Mapping[str, Any]], reads: frozenset[str]) -> None:
    if not isinstance(value, Mapping):
        found.add("decision", f"must be an object, not {shown(value)}")
        return
    found.known(value, _DECISION, "decision")
    mode, fallback = value.get("mode"), value.get("fallback")
    if mode not in MODES:
        found.add("decision.mode", f"must be one of {', '.join(MODES)}, not {shown(mode)}")
    if fallback not in (None, "max", "per_category"):
        found.add("decision.fallback", f"must be max or per_category, not {shown(fallback)}")
    most = value.get("max")
    if isinstance(most, Mapping):
        found.number(most, "threshold", "decision.max", least=0, most=1)
    elif most is not None or "max" in (mode, fallback):
        found.add("decision.max", f"must be an object with a threshold, not {shown(most)}")
    micro = value.get("micro_layer")
    if micro is not None or mode == "micro_layer":
        check_micro_layer(found, micro, categories, reads)
    for number, name in enumerate(found.texts(value, "critical", "decision", required=False) or ()):
        if name not in categories:
            found.add(f"decision.critical.{number}", f"{shown(name)} is no category of this pack")
