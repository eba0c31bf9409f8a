"""From settings and plugins to a model that is ready: the stack, the scheme, the checkpoint, the self-test, the fingerprint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import torch

from spinf_core.checkpoints import Checkpoint, cache_root, resolve
from spinf_core.checkpoints.progress import megabytes
from spinf_core.engine import fingerprint
from spinf_core.engine.ahead import compile_ahead
from spinf_core.engine.allocation import keep_freed_memory
from spinf_core.engine.devices import choose_device
from spinf_core.engine.processor import default_threads
from spinf_core.engine.schemes import automatic, choose_scheme
from spinf_core.engine.selftest import SelfTest, kept_self_test, self_test
from spinf_core.engine.sizes import Sizes
from spinf_core.errors import SetupError
from spinf_core.manifests import Manifest
from spinf_core.quant.interface import Scheme
from spinf_core.quant.reading import has_static_fp8
from spinf_core.records import ModelStack
from spinf_core.registry import Plugins, Registered, load_factory
from spinf_core.settings import Settings
from spinf_core.stack import LoadContext, Model

Progress = Callable[[str], None]

# Rows of a pass and of the largest job where neither the settings nor the manifest say: what one pass takes about a second for.
DEFAULT_ROWS = {"cpu": (2048, 6144), "cuda": (16_384, 32_768)}
STEPS = {"cpu": 16, "cuda": 32}  # sizes to the octave


@attrs.frozen(kw_only=True, eq=False)
class Loaded:
    """A model that is ready, and what it is made of.

    Attributes:
        names: the id and aliases that requests may use, case folded.
        settings: with the manifest's values in their place.
        sizes, budget, max_rows: of passes.
        manifest: the model's, None for a folder or a Hub id. family: of the stack. scheme: its name.
        fingerprint: the response's `system_fingerprint`. fingerprint_inputs: what it is made of.
        composition: rows of the start-up table: what, which, from where.
    """

    id: str
    names: frozenset[str]
    manifest: Manifest | None
    family: str
    scheme: str
    model: Model
    settings: Settings
    sizes: Sizes
    budget: int
    max_rows: int
    self_test: SelfTest
    fingerprint: str
    fingerprint_inputs: Mapping[str, str]
    composition: tuple[tuple[str, str, str], ...]


@attrs.frozen(kw_only=True, eq=False)
class Located:
    """A model that was found: its checkpoint is on this machine, and a stack that runs it is installed.

    Attributes:
        id: of the model. manifest: the model's, None for a folder or a Hub id.
        settings: with the manifest's values in their place.
        config: the parsed `config.json`.
    """

    id: str
    manifest: Manifest | None
    settings: Settings
    stack: Registered[ModelStack]
    checkpoint: Checkpoint
    config: Mapping[str, Any]


def locate(name: str, settings: Settings, plugins: Plugins, progress: Progress) -> Located:
    """Find a model by id, alias, folder or Hub id, and bring its checkpoint.

    Raises:
        SetupError: naming what is missing or wrong, and what to do.
    """
    manifest = plugins.manifests.find(name)
    if manifest is None and "/" not in name and not Path(name).is_dir():
        plugins.model(name)  # raises with the nearest known name
    if manifest is not None:
        settings = settings.with_manifest(manifest)
        if not manifest.available:
            raise SetupError(f"model {manifest.id} is announced but not available yet; `spinf models` lists those that are")
    stack, checkpoint = _checkpoint(name, manifest, settings, plugins, progress)
    config = json.loads((checkpoint.folder / "config.json").read_text(encoding="utf-8"))
    if stack is None:
        stack = plugins.stack_for(str(config.get("model_type")))
    return Located(
        id=manifest.id if manifest else name,
        manifest=manifest,
        settings=settings,
        stack=stack,
        checkpoint=checkpoint,
        config=config,
    )


def build_model(located: Located, device: torch.device, scheme: Scheme, progress: Progress) -> Model:
    """Load the weights and build the model.

    Raises:
        SetupError: a tensor is missing, too many or of another shape, or the config asks for what the stack does not run.
    """
    progress(f"loading {located.id} on {device}, {scheme.name}")
    settings = located.settings
    began = time.perf_counter()
    context = LoadContext(
        folder=located.checkpoint.folder,
        config=located.config,
        device=device,
        scheme=scheme,
        head_precision=settings.engine.lm_head,
        options=settings.engine.stack_options,
        settings=settings.of_record(located.stack.record),
    )
    model: Model = load_factory(located.stack)(context)
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # copies to the GPU run beside the host
    size = sum(path.stat().st_size for path in located.checkpoint.folder.glob("*.safetensors"))
    progress(f"loaded {megabytes(size)} in {time.perf_counter() - began:.1f} s")
    return model


def load(name: str, why: str, settings: Settings, plugins: Plugins, progress: Progress) -> Loaded:
    """Load a model by id, alias, folder or Hub id.

    Args:
        name: of the model. why: how it was chosen, for the start-up table.
        settings: as layered so far; the manifest's values are added.
        plugins: the composition.
        progress: called with a line for each stage.

    Raises:
        SetupError: naming what is missing or wrong, and what to do.
    """
    located = locate(name, settings, plugins, progress)
    device = choose_device(located.settings.engine.device, located.stack)
    if (threads := located.settings.engine.threads or (default_threads() if device.type == "cpu" else None)) is not None:
        torch.set_num_threads(threads)
    if device.type != "cpu":
        return _loaded(located, device, name, why, plugins, progress)
    keep_freed_memory()
    # OpenMP keeps helpers for every thread that ever ran a product, and with more of them than cores all wait by sleeping
    # rather than by spinning, which costs a small pass a quarter of its time. This thread's helpers end with it.
    with ThreadPoolExecutor(1, thread_name_prefix="spinf-load") as apart:
        return apart.submit(_loaded, located, device, name, why, plugins, progress).result()


def _loaded(located: Located, device: torch.device, name: str, why: str, plugins: Plugins, progress: Progress) -> Loaded:
    settings, manifest, stack, checkpoint = located.settings, located.manifest, located.stack, located.checkpoint
    registered, scheme = choose_scheme(settings, manifest, plugins, device, located.config, checkpoint)
    model = build_model(located, device, scheme, progress)
    default_budget, default_rows = DEFAULT_ROWS[device.type]
    max_rows = settings.engine.max_tokens or min(default_rows, model.max_positions)
    budget = min(settings.engine.token_budget or default_budget, max_rows)
    sizes = Sizes.up_to(budget, max_rows, STEPS[device.type])
    chosen = settings.engine
    values = fingerprint.inputs(checkpoint.revision, model, scheme, chosen.lm_head, sizes.listed, chosen.stack_options)
    compile_ahead(model, sizes, progress)
    tested = kept_self_test(
        cache_root() / "self-test",
        fingerprint.digest(values),
        lambda: self_test(model, sizes, progress),
        again=settings.engine.self_test,
    )
    if not scheme.invariant:  # the self-test tries some passes; what the scheme knows of all of them counts for more
        tested = attrs.evolve(tested, failures=(*tested.failures, f"scheme {scheme.name} is not invariant by its own account"))
    if not tested.invariant:
        progress(
            f"warning: scores vary with the packing on this machine with scheme {scheme.name}, so floors are not cached: "
            + "; ".join(tested.failures[:3])
        )
    return Loaded(
        id=located.id,
        names=manifest.names if manifest else frozenset({name.casefold()}),
        manifest=manifest,
        family=stack.record.family,
        scheme=scheme.name,
        model=model,
        settings=settings,
        sizes=sizes,
        budget=budget,
        max_rows=max_rows,
        self_test=tested,
        fingerprint=fingerprint.system_fingerprint(values, tested.digest, tested.invariant),
        fingerprint_inputs=values,
        composition=(
            ("model", f"{located.id} ({why})", checkpoint.origin),
            ("family", stack.record.family, stack.origin),
            ("scheme", _described(located, device, scheme.name, tested.invariant), registered.origin),
            ("head", model.head, ""),
            ("device", fingerprint.device_name(device), f"torch {torch.__version__}"),
        ),
    )


def _described(located: Located, device: torch.device, scheme: str, invariant: bool) -> str:
    """A scheme for the start-up table."""
    text = scheme if invariant else f"{scheme}, not invariant here"
    if located.settings.engine.quant is not None:
        return text
    return f"{text} ({automatic(device, has_static_fp8(located.config), located.checkpoint.folder).why})"


def _checkpoint(
    name: str, manifest: Manifest | None, settings: Settings, plugins: Plugins, progress: Progress
) -> tuple[Registered[ModelStack] | None, Checkpoint]:
    """The checkpoint, and the stack where the manifest already names it."""
    if manifest is None:
        return None, resolve(str(settings.engine.model_dir or name), progress=progress)
    stack = plugins.stack_of_family(manifest.family)
    if settings.engine.model_dir is not None:
        return stack, resolve(str(settings.engine.model_dir), progress=progress)
    convert = load_factory(stack, stack.record.convert) if stack.record.convert else None
    return stack, resolve(manifest, convert=convert, progress=progress)
