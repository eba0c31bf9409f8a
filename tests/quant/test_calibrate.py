"""Calibration of whole models. The oracle is transformers: its linears' inputs, each prompt run alone."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from spinf_quant_fp8s.calibration import calibrate
from spinf_quant_fp8s.corpus import Corpus
from spinf_quant_fp8s.recorder import Recorder
from spinf_quant_fp8s.table import ScaleTable

from spinf_core.cli.main import main
from spinf_core.errors import SetupError
from spinf_core.settings import load_settings
from spinf_core.testing.toy import toy_backend

sys.path.insert(0, str(Path(__file__).parent))

import static

KINDS = ("unified", "small", "llama")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPINF_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus.read(static.write_corpus(tmp_path / "corpus.jsonl"))


def run(folder: Path, corpus: Corpus, out: Path, headroom: float = 2.0, **engine: Any) -> ScaleTable:
    return calibrate(str(folder), corpus, out, headroom, static.settings(**engine), static.plugins(), lambda line: None)


@torch.inference_mode()
def largest_inputs(model: torch.nn.Module) -> dict[str, float]:
    """Of every linear, over each content with each template behind it, and each template alone."""
    seen: dict[str, float] = {}

    def watch(name: str) -> Any:
        def hook(module: torch.nn.Module, args: tuple[torch.Tensor]) -> None:
            seen[name] = max(seen.get(name, 0.0), args[0].abs().max().item())

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(watch(name))
    tokenizer = toy_backend()
    for content in (*static.CONTENTS, ""):
        for template in static.TEMPLATES:
            model(torch.tensor([tokenizer.encode(content + template).ids]))
    return seen


def conspicuous_padding(model: torch.nn.Module) -> None:
    """Give token 0, which no text holds and padding is made of, an embedding that a norm makes larger than any other."""
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding[0] = 0
        embedding[0, 0] = 50


@pytest.mark.parametrize("kind", KINDS)
def test_the_scale_of_every_linear_is_that_of_the_largest_input_that_transformers_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: Corpus, kind: str
) -> None:
    model = static.model_of(kind)
    conspicuous_padding(model)
    folder = static.save(model, tmp_path / "plain")
    found: dict[str, float] = {}
    real = Recorder.largest
    monkeypatch.setattr(Recorder, "largest", lambda self: found.update(real(self)) or real(self))

    table = run(folder, corpus, tmp_path / "scales.json", headroom=1.5)

    expected = largest_inputs(model)
    # Layers that use another's keys and values have projections of their own in the checkpoint, which nobody runs.
    unused = {name for name in expected if name not in found}
    assert all(name.endswith(("k_proj", "v_proj")) for name in unused)
    assert found == pytest.approx({name: expected[name] for name in expected if name not in unused}, rel=1e-4)
    assert table.scales == {name: 2.0 ** math.ceil(math.log2(1.5 * largest / 448)) for name, largest in found.items()}


def test_a_table_says_how_it_came_about_and_is_read_as_it_was_written(tmp_path: Path, corpus: Corpus) -> None:
    folder = static.save(static.model_of("llama"), tmp_path / "plain")

    table = run(folder, corpus, tmp_path / "scales.json")

    read = ScaleTable.read(tmp_path / "scales.json")
    assert (read.scales, read.provenance, read.revision) == (table.scales, table.provenance, table.revision)
    assert read.revision == static.located(folder).checkpoint.revision
    made = read.provenance
    assert (made["corpus"], made["corpus_sha256"], made["requests"]) == ("corpus.jsonl", corpus.sha256, 3)
    assert (made["model"], made["headroom"], made["activations"]) == (str(folder), 2.0, "fp32")
    assert set(made["versions"]) == {"spinf-core", "spinf-quant-fp8s", "torch"}


def test_the_scales_do_not_depend_on_how_the_passes_are_filled(tmp_path: Path, corpus: Corpus) -> None:
    folder = static.save(static.model_of("unified"), tmp_path / "plain")

    together = run(folder, corpus, tmp_path / "a.json")
    apart = run(folder, corpus, tmp_path / "b.json", token_budget=64, max_tokens=256)

    assert together.scales == apart.scales
    assert together.provenance["tokens"] == apart.provenance["tokens"]


def test_activations_that_are_no_numbers_are_named_by_the_first_layer_that_meets_them(tmp_path: Path, corpus: Corpus) -> None:
    folder = static.save(static.model_of("unified"), tmp_path / "plain")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.mlp.down_proj.weight"][3, 5] = torch.nan
    save_file(tensors, folder / "model.safetensors")

    with pytest.raises(SetupError, match=r"input of model\.layers\.3\.self_attn\.q_proj holds nan, in fp32; .*fetch it again"):
        run(folder, corpus, tmp_path / "scales.json")
    assert not (tmp_path / "scales.json").exists()


def test_a_request_that_the_model_cannot_take_is_named_by_its_line(tmp_path: Path) -> None:
    folder = static.save(static.model_of("llama"), tmp_path / "plain")
    path = static.write_corpus(tmp_path / "corpus.jsonl")
    boundary = {"id": "b", "template": "Sta{?}", "options": ["tus"]}
    body = {"messages": [], "scoring": {"queries": [boundary], "empty_floor": False}}
    path.write_text(path.read_text() + json.dumps(body))

    with pytest.raises(SetupError, match=r"corpus\.jsonl, line 6: scoring\.queries\.0\.options\.0: "):
        run(folder, Corpus.read(path), tmp_path / "scales.json")


def test_the_limits_of_a_line_are_those_of_the_model_s_server(tmp_path: Path, corpus: Corpus) -> None:
    folder = static.save(static.model_of("llama"), tmp_path / "plain")
    lowered = load_settings({"engine.device": "cpu", "limits.max_content_tokens": 3}, environ={})

    with pytest.raises(SetupError, match=r"corpus\.jsonl, line 1: "):
        calibrate(str(folder), corpus, tmp_path / "scales.json", 2.0, lowered, static.plugins(), lambda line: None)


def test_a_quantized_scheme_is_refused(tmp_path: Path, corpus: Corpus) -> None:
    folder = static.save(static.model_of("llama"), tmp_path / "plain")

    with pytest.raises(SetupError, match=r"runs the unquantized model, not 'w8a16' \(--quant\); use --quant fp32 or bf16"):
        run(folder, corpus, tmp_path / "scales.json", quant="w8a16")


@pytest.mark.parametrize("out", ["nowhere/scales.json", "plain/scales.json", "."])
def test_an_output_that_cannot_be_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: Corpus, out: str
) -> None:
    folder = static.save(static.model_of("llama"), tmp_path / "plain")
    monkeypatch.setattr("spinf_quant_fp8s.calibration.build_model", lambda *arguments: pytest.fail("the model was loaded"))

    with pytest.raises(SetupError, match=r"name another.* with --out"):
        run(folder, corpus, tmp_path / out)


# The command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a checkpoint, where a command runs with the plugins of this tree."""
    static.save(static.model_of("llama"), tmp_path / "plain")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spinf_core.cli.main._compose", lambda disabled: static.plugins())
    return tmp_path


def test_the_command_prints_the_path_of_the_table_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    static.write_corpus(here / "requests.jsonl")

    assert main(["calibrate", "./plain", "--corpus", "requests.jsonl", "--out", "t.json", "--device", "cpu"]) == 0

    printed = capsys.readouterr()
    assert printed.out == "t.json\n"
    assert "14 scales from 3 requests" in printed.err
    assert len(ScaleTable.read(here / "t.json").scales) == 14


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("\n \n", [], "corpus requests.jsonl is empty; write into it requests"),
        ('{"messages": []}\n', [], "corpus requests.jsonl, line 1: scoring: scoring is required"),
        ('\n{"messages": [}\n', [], "corpus requests.jsonl, line 2: "),
        ("\n\n[1]\n", [], "corpus requests.jsonl, line 3: not a JSON object"),
        (None, [], "corpus requests.jsonl: No such file"),
        ("{}", ["--headroom", "0.5"], "--headroom 0.5: expected 1 or more"),
        ("{}", ["--headroom", "nan"], "--headroom nan: expected 1 or more"),
    ],
)
def test_the_command_says_what_is_wrong(
    here: Path, capsys: pytest.CaptureFixture[str], content: str | None, arguments: list[str], message: str
) -> None:
    if content is not None:
        (here / "requests.jsonl").write_text(content)

    assert main(["calibrate", "./plain", "--corpus", "requests.jsonl", *arguments]) == 2

    assert message in capsys.readouterr().err
    assert not (here / "scales.json").exists()
