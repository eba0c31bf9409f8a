"""A checkpoint of the family through the whole engine: self-test, floors, packing, options of several tokens."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from spinf_qwen35 import plugin

from spinf_core.engine.engine import Engine
from spinf_core.engine.service import ScoringService
from spinf_core.errors import SetupError
from spinf_core.plugins import discover
from spinf_core.settings import load_settings

sys.path.insert(0, str(Path(__file__).parent))

import tiny_qwen as tiny

INPUTS = {"short": "It is red.", "long": "The north wing is out, the gate is blue and the question is about it. " * 6}
QUERIES = {
    "status": {"template": "\nStatus is{?}", "options": [" in", " in part", " out"]},
    "yes": {"template": "\nIs it red?{?}", "options": [" yes", " no"]},
    "gate": {"template": " and then{?}", "options": [" north wing", " north gate"]},
}
Numbers = dict[tuple[str, str], list[float | None]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = tiny.make("whole")
    folder = tiny.save(model, tmp_path_factory.mktemp("qwen"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPINF_CACHE", str(tmp_path_factory.mktemp("cache")))
        with loaded(folder) as engine:
            yield engine
    torch.set_num_threads(threads)


def loaded(folder: Path) -> Engine:
    plugins = discover(only=(), extra=[("qwen35", plugin)], strict=True, environ={})
    return Engine(str(folder), settings=load_settings({}, plugins=plugins, environ={}), plugins=plugins)


def numbers(service: ScoringService, inputs: list[str], queries: list[str]) -> Numbers:
    entries = [{"id": name, "messages": [{"role": "user", "content": INPUTS[name]}]} for name in inputs]
    body: dict[str, Any] = {"inputs": entries, "scoring": {"queries": [{"id": n, **QUERIES[n]} for n in queries]}}
    found: Numbers = {}
    for result in service.score(body).results:
        for query in result.queries:
            (combination,) = query.combinations
            options = [number for option in combination.options for number in (option.logprob, option.p, option.floor_p)]
            found[result.input_id, query.id] = [*options, combination.residual]
    return found


def test_the_self_test_finds_nothing(engine: Engine) -> None:
    assert engine.service.loaded.self_test.failures == ()


@pytest.mark.parametrize("rows", [{}, {"budget": 176, "max_rows": 448}])
def test_scores_do_not_depend_on_what_is_asked_beside(engine: Engine, rows: dict[str, int]) -> None:
    service = ScoringService(attrs.evolve(engine.service.loaded, **rows))
    try:
        packed = numbers(service, [*INPUTS][::-1], [*QUERIES][::-1])
    finally:
        service.close()
    alone: Numbers = {}
    for name in INPUTS:
        for query in QUERIES:
            alone |= numbers(engine.service, [name], [query])
    assert packed == alone


def test_an_int4_checkpoint_is_refused_by_its_layout(tmp_path: Path) -> None:
    folder = tiny.save(tiny.make("text"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    quantized = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantized}))
    with pytest.raises(SetupError, match="int4 layout 'gptq' is not run yet"):
        loaded(folder)


def test_a_mixture_of_experts_is_refused_by_its_type(tmp_path: Path) -> None:
    folder = tiny.save(tiny.make("text"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "qwen3_5_moe"}))
    with pytest.raises(SetupError, match="'qwen3_5_moe' is a mixture of experts"):
        loaded(folder)
