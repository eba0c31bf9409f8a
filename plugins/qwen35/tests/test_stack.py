"""Every variant against transformers' own forward of each full prompt, the conformance suite, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from spinf_qwen35.stack import Qwen35, load

from spinf_core.engine.probes import Probe, random_probe, run_probes
from spinf_core.errors import SetupError
from spinf_core.nn.state import PathState
from spinf_core.quant.int8 import Int8
from spinf_core.quant.interface import Scheme
from spinf_core.quant.unquantized import Unquantized
from spinf_core.stack import LoadContext, Model
from spinf_core.testing.conformance import SIZES, Oracle, StackConformance, check_invariance, check_past, log_probabilities

sys.path.insert(0, str(Path(__file__).parent))

import tiny_qwen as tiny

CPU = torch.device("cpu")
Made = tuple[torch.nn.Module, Path]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def load_tiny(folder: Path, scheme: str = "fp32", **options: str) -> Qwen35:
    config = json.loads((folder / "config.json").read_text())
    chosen: Scheme = Int8(scheme, CPU) if scheme.startswith("w8") else Unquantized(scheme)
    return load(LoadContext(folder=folder, config=config, device=CPU, scheme=chosen, options=options))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    model = tiny.make("text")
    return model, tiny.save(model, tmp_path_factory.mktemp("text"))


class _Variant(StackConformance):
    variant = ""
    scheme = "fp32"

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, tmp_path_factory: pytest.TempPathFactory) -> Made:
        model = tiny.make(cls.variant)
        return model, tiny.save(model, tmp_path_factory.mktemp(cls.variant))

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, made: Made) -> Model:
        return load_tiny(made[1], cls.scheme)

    @pytest.fixture(scope="class")
    @classmethod
    def oracle(cls, made: Made) -> Oracle:
        return tiny.oracle_of(made[0])


class TestText(_Variant):
    variant = "text"


class TestTextBf16(_Variant):
    variant, scheme, tolerance = "text", "bf16", 5e-2


class TestTied(_Variant):
    variant = "tied"


class TestWhole(_Variant):
    """With a vision tower beside the text model, in the names of which its tensors lie."""

    variant = "whole"


@pytest.mark.parametrize("scheme", ["w8a16", "w8a8"])
def test_int8_keeps_every_bit_and_stays_near(made: Made, scheme: str) -> None:
    model, oracle = load_tiny(made[1], scheme), tiny.oracle_of(made[0])
    check_invariance(model)
    check_past(model)
    probe = random_probe(np.random.default_rng(0), model.vocab_size, 65, 4, 9)
    found = log_probabilities(model, run_probes(model, [probe], SIZES)[0])
    for row, branch in zip(found, probe.branches, strict=True):
        assert (row - oracle([*probe.content, *branch])[-1]).abs().mean() < 0.05


@pytest.mark.parametrize("length", [129, 1000])
def test_long_contents_equal_transformers(made: Made, length: int) -> None:
    """Stems in common, branches of 1 to 40 tokens, options of several tokens."""
    model, oracle = load_tiny(made[1]), tiny.oracle_of(made[0])
    generator = np.random.default_rng(length)
    content, stem = (tuple(generator.integers(0, model.vocab_size, count).tolist()) for count in (length, 30))
    tails = [tuple(generator.integers(0, model.vocab_size, count).tolist()) for count in (1, 3, 10)]
    probe = Probe(content, (stem[:1], stem, *((*stem, *tail) for tail in tails), (*stem, *tails[1], 7), tails[0]))
    found = log_probabilities(model, run_probes(model, [probe], SIZES)[0])
    for row, branch in zip(found, probe.branches, strict=True):
        torch.testing.assert_close(row, oracle([*content, *branch])[-1], atol=1e-4, rtol=0)


def test_the_kernels_of_a_gpu_give_the_same_scores(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter, the whole stack."""
    pytest.importorskip("triton", reason="triton has no wheel for this platform")
    from spinf_qwen35 import mixer, stack

    from spinf_core.nn.kernels.convolution import convolve
    from spinf_core.nn.kernels.tree_delta import TritonTreeDelta
    from spinf_core.nn.walks import RecurrencePlan

    def recurrence(layout: Any, keep: Any) -> TritonTreeDelta:
        return TritonTreeDelta(RecurrencePlan.build(layout, keep), CPU)

    def convolution(inputs: Any, weight: Any, taps: Any, past: Any, **what: Any) -> torch.Tensor:
        return convolve(inputs, weight, taps, past, what["first"], what["heads"], what["width"], what.get("norm"))

    monkeypatch.setattr(stack, "tree_delta", recurrence)
    monkeypatch.setattr(mixer, "convolve", convolution)
    model, oracle = load_tiny(made[1]), tiny.oracle_of(made[0])
    probe = random_probe(np.random.default_rng(8), model.vocab_size, 66, 4, 6)
    found = log_probabilities(model, run_probes(model, [probe], SIZES)[0])
    for row, branch in zip(found, probe.branches, strict=True):
        torch.testing.assert_close(row, oracle([*probe.content, *branch])[-1], atol=1e-4, rtol=0)


# Reported faults of neighbouring systems


@pytest.mark.parametrize("length", [63, 64, 65])
def test_branches_on_both_sides_of_a_chunk_edge_equal_one_unbranched_run(made: Made, length: int) -> None:
    """Case B1: the same tokens with the cut anywhere, and twice in one pass."""
    model, oracle = load_tiny(made[1]), tiny.oracle_of(made[0])
    tokens = tuple(np.random.default_rng(length).integers(0, model.vocab_size, length + 5).tolist())
    probe = Probe(tokens[:length], (tokens[length:], (1, 2, 3)))
    unbranched = Probe((), (tokens,))
    first, second, plain = (log_probabilities(model, rows) for rows in run_probes(model, [probe, probe, unbranched], SIZES))
    expected = oracle(tokens)[-1]
    torch.testing.assert_close(first[0], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(plain[0], expected, atol=1e-4, rtol=0)
    assert torch.equal(first, second)


@pytest.mark.parametrize("scheme", ["fp32", "bf16"])
def test_a_question_scores_the_same_behind_a_very_different_one(made: Made, scheme: str) -> None:
    """Case A2: no recurrent state and no convolution tap leaks from a branch or a job into the next, on any layer."""
    model = load_tiny(made[1], scheme)
    generator = np.random.default_rng(5)
    content, a, b = (tuple(generator.integers(0, model.vocab_size, count).tolist()) for count in (70, 40, 3))
    (alone,) = run_probes(model, [Probe(content, (b,))], SIZES)
    (beside,) = run_probes(model, [Probe(content, (a, b))], SIZES)
    _, behind = run_probes(model, [Probe(a, (a,)), Probe(content, (b,))], SIZES)
    assert torch.equal(beside[1], alone[0])
    assert torch.equal(behind, alone)


def test_one_thread_and_two_give_the_same_bits(made: Made) -> None:
    for scheme in ("fp32", "bf16"):
        model = load_tiny(made[1], scheme)
        probe = random_probe(np.random.default_rng(6), model.vocab_size, 200, 40, 20)
        (one,) = run_probes(model, [probe], SIZES)
        torch.set_num_threads(2)
        (two,) = run_probes(model, [probe], SIZES)
        torch.set_num_threads(1)
        assert torch.equal(one, two), scheme


# States


def test_a_state_holds_keys_values_recurrences_and_taps(made: Made) -> None:
    model = load_tiny(made[1])
    from spinf_core.compiler.jobs import split
    from spinf_core.engine.packing import lay_out

    job = Probe(tuple(range(70)), ((1, 2),)).job()
    pass_ = lay_out(list(split(job, job.rows)), SIZES, model.axes).pass_
    _, state = model.forward(pass_, keep=[69, 71])
    assert isinstance(state, PathState)
    recurrent = 4 * 16 * 16 + 3 * (2 * 2 * 16 + 4 * 16)  # numbers: a state for each value head, three taps for each channel
    attention = 2 * 2 * 32  # a key and a value for each stored row
    assert state.bytes == 4 * (3 * 2 * recurrent + (70 + 2) * attention)
    fork = state.fork([0])
    assert fork.bytes == 4 * (3 * recurrent + 70 * attention)
    state.free()
    assert (state.bytes, state.rows) == (0, 0)
    assert fork.rows == 1


# Refusals


def rewritten(folder: Path, target: Path, **changes: Any) -> Path:
    """The checkpoint with another config."""
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | changes))
    return target


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_type": "qwen3_5_moe"}, "'qwen3_5_moe' is a mixture of experts"),
        ({"model_type": "qwen3_5_moe_text"}, "'qwen3_5_moe_text' is a mixture of experts"),
        ({"model_type": "qwen3_5", "text_config": {"model_type": "llama"}}, "of type 'llama'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "int4 layout 'gptq' is not run yet"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "int4 layout 'awq' is not run yet"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"layer_types": ["linear_attention"] * 3 + ["sliding_attention"]}, "sliding_attention are not implemented"),
        ({"rope_parameters": tiny.BASE["rope_parameters"] | {"rope_type": "yarn", "factor": 2.0}}, "rope type 'yarn'"),
        ({"linear_num_value_heads": 3}, "3 value heads do not share 2 key heads"),
        ({"intermediate_size": 128}, r"mlp\.gate_proj\.weight has shape \[96, 64\], expected \[128, 64\]"),
        ({"tie_word_embeddings": False, "num_hidden_layers": 3, "layer_types": ["linear_attention"] * 3}, "not expected"),
    ],
    ids=str,
)
def test_what_the_stack_would_run_wrongly_is_refused(made: Made, tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(SetupError, match=fault):
        load_tiny(rewritten(made[1], tmp_path, **changes))


def test_a_tensor_too_many_is_refused_by_name(made: Made, tmp_path: Path) -> None:
    folder = rewritten(made[1], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.layers.0.surprise.weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(SetupError, match=r"model\.layers\.0\.surprise\.weight"):
        load_tiny(folder)


def test_what_predicts_further_tokens_is_left_out(made: Made, tmp_path: Path) -> None:
    folder = rewritten(made[1], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"mtp.layers.0.weight": torch.zeros(2)}, folder / "model.safetensors")
    assert load_tiny(folder).vocab_size == 512


def test_unknown_stack_options_are_refused_by_name(made: Made) -> None:
    with pytest.raises(SetupError, match="no stack options; remove speed"):
        load_tiny(made[1], speed="high")
