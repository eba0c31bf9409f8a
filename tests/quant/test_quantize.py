"""fp8-static checkpoints written from plain ones: the bits that they score, and that they are whole or absent."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from spinf_quant_fp8s.calibration import calibrate
from spinf_quant_fp8s.corpus import Corpus
from spinf_quant_fp8s.quantization import quantize
from spinf_quant_fp8s.scheme import Static
from spinf_quant_fp8s.table import ScaleTable
from spinf_quant_fp8s.writing import ShardWriter

from spinf_core.checkpoints import check_folder
from spinf_core.cli.main import main
from spinf_core.engine.probes import run_probes
from spinf_core.errors import SetupError
from spinf_core.quant.interface import Scheme
from spinf_core.quant.reading import has_static_fp8
from spinf_core.registry import load_factory
from spinf_core.stack import LoadContext, Model
from spinf_core.testing import conformance

sys.path.insert(0, str(Path(__file__).parent))

import static

FP8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPINF_CACHE", str(tmp_path_factory.mktemp("cache")))


def made(folder: Path, kind: str, dtype: torch.dtype = torch.bfloat16, shard: str = "5GB") -> tuple[Path, ScaleTable]:
    """A plain checkpoint in `folder/plain`, and its table."""
    plain = static.save(static.model_of(kind).to(dtype), folder / "plain", shard)
    corpus = Corpus.read(static.write_corpus(folder / "corpus.jsonl"))
    table = calibrate(str(plain), corpus, folder / "scales.json", 2.0, static.settings(), static.plugins(), lambda line: None)
    return plain, table


def write(plain: Path, table: ScaleTable, out: Path, base: str = "") -> Path:
    quantize(static.located(plain), table, out, base, lambda line: None)
    return out


def load_with(folder: Path, scheme: Scheme) -> Model:
    found = static.located(folder)
    context = LoadContext(folder=folder, config=found.config, device=torch.device("cpu"), scheme=scheme)
    model: Model = load_factory(found.stack)(context)
    return model


@torch.inference_mode()
def scores(model: Model) -> torch.Tensor:
    some = conformance.probes(model)[3:8]
    return torch.cat([conformance.log_probabilities(model, rows) for rows in run_probes(model, some, conformance.SIZES)])


@pytest.mark.parametrize(
    ("kind", "dtype", "shard"),
    [
        ("unified", torch.bfloat16, "5GB"),
        ("small", torch.bfloat16, "60KB"),
        ("experts", torch.float32, "5GB"),
        ("llama", torch.bfloat16, "60KB"),
        ("llama with biases", torch.float32, "5GB"),
    ],
)
def test_the_checkpoint_scores_bit_for_bit_as_the_plain_one_quantized_at_load(
    tmp_path: Path, kind: str, dtype: torch.dtype, shard: str
) -> None:
    plain, table = made(tmp_path, kind, dtype, shard)

    written = write(plain, table, tmp_path / "fp8")

    at_load = scores(load_with(plain, Static(table, static.located(plain).checkpoint.revision)))
    assert torch.equal(scores(load_with(written, Static(None))), at_load)


def test_scores_of_another_table_are_others(tmp_path: Path) -> None:
    plain, table = made(tmp_path, "unified")
    coarse = ScaleTable(revision=table.revision, provenance={}, scales=dict.fromkeys(table.scales, 8.0))

    found = [scores(load_with(plain, Static(each))) for each in (table, coarse)]

    assert not torch.equal(*found)


def test_the_safetensors_library_reads_what_was_written(tmp_path: Path) -> None:
    plain, table = made(tmp_path, "unified", shard="60KB")
    written = write(plain, table, tmp_path / "fp8")

    shards = sorted(path.name for path in plain.glob("*.safetensors"))
    before = {name: tensor for shard in shards for name, tensor in load_file(plain / shard).items()}
    after = {name: tensor for shard in shards for name, tensor in load_file(written / shard).items()}

    assert len(shards) > 2
    index = json.loads((written / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(after)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in after.values())
    for name, tensor in before.items():
        module = name.removesuffix(".weight")
        if module not in table.scales:
            assert torch.equal(after.pop(name), tensor)
            continue
        stored, scale = after.pop(name), after.pop(f"{name}_scale")
        assert (stored.dtype, scale.dtype, tuple(scale.shape)) == (FP8, torch.float32, (1,))
        assert torch.equal(scale, tensor.float().abs().max().reshape(1) / 448)
        # Of 3 bits of mantissa, or of the smallest step beside zero.
        error = (stored.double() * scale.double() - tensor.double()).abs()
        assert (error <= torch.maximum(tensor.double().abs() * 2**-4, scale.double() * 2**-10) * 1.0001).all()
        assert after.pop(f"{module}.input_scale").item() == table.scales[module]
    assert after == {}


def test_the_config_says_what_is_stored_and_what_was_left_alone(tmp_path: Path) -> None:
    plain, table = made(tmp_path, "small")
    config = check_folder(write(plain, table, tmp_path / "fp8"))

    assert has_static_fp8(config)
    ignored = config["quantization_config"]["ignore"]
    assert "lm_head" in ignored
    assert not set(ignored) & set(table.scales)
    assert {name: config[name] for name in json.loads((plain / "config.json").read_text())} == json.loads(
        (plain / "config.json").read_text()
    )


def test_the_other_files_come_along(tmp_path: Path) -> None:
    plain, table = made(tmp_path, "llama")
    (plain / "chat_template.jinja").write_text("{{ messages }}")
    (plain / "LICENSE").write_text("Do as you like.")
    (plain / ".hidden.json").write_text("{}")
    (plain / "pytorch_model.bin").write_bytes(b"")
    table = ScaleTable(revision=static.located(plain).checkpoint.revision, provenance=table.provenance, scales=table.scales)

    written = write(plain, table, tmp_path / "fp8")

    names = {path.name for path in written.iterdir()}
    assert names == {
        *("README.md", "recipe.yaml", "config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "chat_template.jinja", "LICENSE"),
    }
    assert (written / "tokenizer.json").read_bytes() == (plain / "tokenizer.json").read_bytes()


def test_the_card_and_the_recipe_say_how_it_was_made(tmp_path: Path) -> None:
    plain, table = made(tmp_path, "llama")
    (plain / "README.md").write_text("---\nlanguage: en\nlicense: other\nlicense_name: the-licence\n---\n# Plain\n")

    written = write(plain, table, tmp_path / "fp8", base="org/plain")

    card = (written / "README.md").read_text()
    assert card.startswith("---\nbase_model: org/plain\nlicense: other\nlicense_name: the-licence\ntags:\n")
    assert table.revision in card
    assert table.provenance["corpus_sha256"] in card
    assert "$ spinf serve ./fp8" in card
    recipe = dict(line.split(": ", 1) for line in (written / "recipe.yaml").read_text().splitlines())
    assert json.loads(recipe["calibration"]) == dict(table.provenance)
    assert json.loads(recipe["revision"]) == table.revision


# Refused


def test_a_table_of_another_revision_is_refused_by_name(tmp_path: Path) -> None:
    plain, table = made(tmp_path, "llama")
    other = ScaleTable(revision="another", provenance={"model": "m"}, scales=table.scales, path="their.json")

    with pytest.raises(SetupError, match=r"their\.json was made for revision another \(m\), and this checkpoint is revision"):
        write(plain, other, tmp_path / "fp8")
    with pytest.raises(SetupError, match=r"their\.json was made for revision another"):
        load_with(plain, Static(other, table.revision))


def test_a_table_of_modules_that_are_not_there_is_refused_by_their_names(tmp_path: Path) -> None:
    plain, table = made(tmp_path, "llama")
    other = ScaleTable(revision=table.revision, provenance={}, scales={**table.scales, "model.layers.9.x": 1.0}, path="t")

    with pytest.raises(SetupError, match=r"scale table t has scales for model\.layers\.9\.x, and the checkpoint has no such"):
        write(plain, other, tmp_path / "fp8")


def test_an_fp8_static_checkpoint_is_not_quantized_again(tmp_path: Path) -> None:
    plain, table = made(tmp_path, "llama")
    written = write(plain, table, tmp_path / "fp8")

    with pytest.raises(SetupError, match=r"is fp8-static already.*name the unquantized checkpoint"):
        write(written, table, tmp_path / "again")


@pytest.mark.parametrize("out", ["full", "plain", "plain/inside", "file"])
def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path, out: str) -> None:
    plain, table = made(tmp_path, "llama")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = sorted(path.name for path in tmp_path.rglob("*"))

    with pytest.raises(SetupError, match="name another"):
        write(plain, table, tmp_path / out)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    plain, table = made(tmp_path, "llama")
    (tmp_path / "fp8").mkdir()

    check_folder(write(plain, table, tmp_path / "fp8"))


# Interrupted


def test_until_all_is_written_nothing_looks_like_a_checkpoint(tmp_path: Path) -> None:
    plain, table = made(tmp_path, "llama", shard="60KB")
    out = tmp_path / "new/fp8"
    seen = []

    def look(line: str) -> None:
        seen.append(line)
        assert not out.exists()
        (partial,) = out.parent.iterdir()
        with pytest.raises(SetupError, match=r"config\.json is missing"):
            check_folder(partial)

    quantize(static.located(plain), table, out, "", look)

    assert len(seen) > 2
    assert [path.name for path in out.parent.iterdir()] == ["fp8"]


@pytest.mark.parametrize(
    ("error", "raised"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "No space left"), SetupError)]
)
def test_what_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, raised: type[BaseException]
) -> None:
    plain, table = made(tmp_path, "llama")
    before = sorted(path.name for path in tmp_path.iterdir())
    put = ShardWriter.put

    def interrupted(self: ShardWriter, name: str, tensor: torch.Tensor) -> None:
        if "layers.1" in name:
            raise error
        put(self, name, tensor)

    monkeypatch.setattr(ShardWriter, "put", interrupted)

    with pytest.raises(raised):
        write(plain, table, tmp_path / "fp8")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_the_command_prints_the_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, "llama")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spinf_core.cli.main._compose", lambda disabled: static.plugins())

    assert main(["quantize", "./plain", "--scales", "scales.json", "--out", "fp8"]) == 0

    printed = capsys.readouterr()
    assert printed.out == "fp8\n"
    assert "14 linears in fp8; try `spinf serve fp8`" in printed.err
    assert has_static_fp8(check_folder(tmp_path / "fp8"))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_refused_by_name(tmp_path: Path, number: float) -> None:
    """An infinite one would give a scale that no server loads, and all others would be zeros."""
    plain, table = made(tmp_path, "llama")
    name = f"{next(iter(table.scales))}.weight"
    tensors = load_file(plain / "model.safetensors")
    tensors[name][0, 0] = number
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    table = attrs.evolve(table, revision=static.located(plain).checkpoint.revision)
    with pytest.raises(SetupError, match=f"{name} holds numbers that are not finite"):
        write(plain, table, tmp_path / "fp8")
    assert not (tmp_path / "fp8").exists()
