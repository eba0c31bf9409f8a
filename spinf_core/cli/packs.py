"""`spinf packs`: check a repository of prompt packs, list what would be served, show one pack. No model is loaded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence

from spinf_core.cli.console import note
from spinf_core.cli.flags import add_flags, read_settings
from spinf_core.columns import aligned
from spinf_core.default_model import chosen_model
from spinf_core.errors import Rejected, SetupError
from spinf_core.packs.catalog import Catalog, Enabled
from spinf_core.packs.file import Pack, PackError
from spinf_core.packs.golden import check_golden
from spinf_core.packs.listing import listing
from spinf_core.packs.loading import fetch, load_catalog, served_names
from spinf_core.packs.microlayer import lock_fits, lock_of
from spinf_core.packs.repository import Repository
from spinf_core.settings import Settings

PROBLEMS = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    validate = actions.add_parser("validate", help="check every pack of a folder; exit 1 on any problem", allow_abbrev=False)
    validate.add_argument("source", metavar="FOLDER", help="folder of a repository, or another source")
    list_ = actions.add_parser("list", help="list the packs that would be served, and those left out", allow_abbrev=False)
    show = actions.add_parser("show", help="show one pack", allow_abbrev=False)
    show.add_argument("id", metavar="ID", help="namespace/name, or namespace/name@version")
    for action in (list_, show):
        action.add_argument("--model", metavar="MODEL", help="the served model; without it, the default one")
        action.add_argument("--json", action="store_true", help="print JSON")
    for action in (validate, list_, show):
        add_flags(action, ("features",))


def run(arguments: argparse.Namespace) -> int:
    """Run the action."""
    plugins = arguments.compose()
    settings = read_settings(arguments, plugins)
    if arguments.action == "validate":
        return _validate(arguments, settings)
    name, _ = chosen_model(arguments.model or settings.engine.model, plugins)
    names = served_names(plugins, name)
    quiet = arguments.action == "list"
    catalog = load_catalog(settings, plugins, names, (lambda line: None) if quiet else note)
    if arguments.action == "list":
        print(json.dumps(listing(catalog), indent=2) if arguments.json else "\n".join(_list(catalog, name)))
        return 0
    id_, _, version = arguments.id.partition("@")
    try:
        found = catalog.find(id_, version or None)
    except Rejected as error:
        raise SetupError(f"{error.message}; name its source with --packs, and its model with --model") from None
    print(json.dumps(found.pack.raw, indent=2, ensure_ascii=False) if arguments.json else "\n".join(_show(found)))
    return 0


def _validate(arguments: argparse.Namespace, settings: Settings) -> int:
    try:
        repository = fetch(arguments.source, settings, arguments.compose(), note)
    except PackError as error:
        print(error)
        print(f"\n{len(error.problems)} problem{'s' * (len(error.problems) != 1)}")
        return PROBLEMS
    print("\n".join(aligned(_validated(repository))))
    problems = [*_problems(repository)]
    if problems:
        print("\n" + "\n".join(problems))
    return PROBLEMS if problems else 0


def _validated(repository: Repository) -> Iterator[Sequence[str]]:
    yield "pack", "version", "model", "status", "queries", "prompts", "lock"
    for each in repository.packs:
        status = "draft" if each.pack is not None and each.pack.draft else each.status.replace("_", " ")
        counts = ("", "") if each.pack is None else (str(len(each.pack.queries)), str(each.pack.prompts))
        yield (each.id, each.version, each.model, status, *counts, "" if each.pack is None else _lock(each.pack))


def _lock(pack: Pack) -> str:
    if pack.decision is None or pack.decision.micro_layer is None:
        return "none"
    return "ok" if lock_fits(pack.raw) else "broken"


def _problems(repository: Repository) -> Iterator[str]:
    for each in repository.packs:
        if each.pack is None:
            continue
        if _lock(each.pack) == "broken":
            yield (
                f"{each.file}: decision.micro_layer.lock does not fit: the pack was edited after its layer was fitted, so its "
                f"fallback decides; fit it again, or write {lock_of(each.pack.raw)} if nothing that it rests on has changed"
            )
        if each.fixture is not None and not each.pack.draft:
            yield from (
                f"{each.fixture.name} of {each.pack.key}: {problem}" for problem in check_golden(each.pack, each.fixture)
            )


def _list(catalog: Catalog, model: str) -> Iterator[str]:
    rows = [("pack", "version", "status", "queries", "prompts", "source")]
    for versions in catalog.enabled.values():
        for each in versions:
            counts = (str(len(each.pack.queries)), str(each.pack.prompts))
            rows.append((each.pack.id, each.pack.version, each.status, *counts, each.source))
    if len(rows) > 1:
        yield from aligned(rows)
    else:
        yield f"no pack is enabled for {model}; name a source with --packs FOLDER"
    if catalog.skipped:
        yield ""
        yield "left out:"
        yield from (f"  {skipped.id} {skipped.version} of {skipped.source}: {skipped.why}" for skipped in catalog.skipped)


def _show(found: Enabled) -> Iterator[str]:
    pack, decision = found.pack, found.pack.decision
    assert decision is not None
    yield f"{found.name}  ({pack.key}, {found.status}, from {found.source})"
    yield from (text for text in (found.description, found.note) if text)
    counts = f"{len(pack.queries)} queries, {pack.prompts} prompts"
    yield f"\nmodel {pack.model}; {', '.join(pack.media)}; {counts}; lock {_lock(pack)}"
    yield "\ncontexts"
    for name, template in pack.contexts.items():
        yield f"  {name}: {json.dumps(template, ensure_ascii=False)}"
    if pack.parameters:
        yield "\nparameters"
        for name, parameter in pack.parameters.items():
            needed = "required" if parameter.required and parameter.default is None else f"default {parameter.default or ''!r}"
            yield f"  {name}: {parameter.label}. {parameter.description} ({needed})"
    yield "\ncategories"
    rows = [("  id", "label", "flagged from", "reads", "")]
    for name, category in pack.categories.items():
        threshold = "reported only" if category.threshold is None else f"{category.threshold:g}"
        notes = [f"requires {', '.join(category.requires)}"] if category.requires else []
        notes += ["does not decide"] * (not category.decides) + ["critical"] * (name in decision.critical)
        reads = sum(read.category == name for read in pack.reads)
        rows.append((f"  {name}", category.label, threshold, str(reads), "; ".join(notes)))
    yield from aligned(rows)
    yield f"\ndecision by {decision.mode}; a call may choose {', '.join(decision.modes)}"
    yield "\nqueries"
    for query in pack.raw["scoring"]["queries"]:
        yield f"  {query['id']}: {json.dumps(query['template'], ensure_ascii=False)} {' /'.join(query['options'])}"
