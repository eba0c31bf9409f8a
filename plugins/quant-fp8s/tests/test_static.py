"""`fp8s`: static scales, out of the checkpoint or out of a table. The oracle is the product in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from spinf_quant_fp8s import linears
from spinf_quant_fp8s.linears import JOINED_ROWS, SplitLinear, StaticLinear, gives_the_same
from spinf_quant_fp8s.products import FP8, LARGEST, scaled_product, to_fp8
from spinf_quant_fp8s.scheme import Static
from spinf_quant_fp8s.table import ScaleTable
from torch import Tensor
from torch.overrides import TorchFunctionMode

from spinf_core.errors import SetupError
from spinf_core.nn.linear import write

IN = 32
ROUNDING = 2**-8
"""Half a unit in the last place of bfloat16, of the smallest number with the same exponent."""


def module(name: str, rows: int, weight_scale: float, input_scale: float, bias: bool = False) -> dict[str, Tensor]:
    """A linear as an fp8-static checkpoint has it."""
    made = {
        f"{name}.weight": torch.randn(rows, IN).mul(60).to(FP8),
        f"{name}.weight_scale": torch.tensor([weight_scale]),
        f"{name}.input_scale": torch.tensor([input_scale]),
    }
    return made | ({f"{name}.bias": torch.randn(rows).to(torch.bfloat16)} if bias else {})


def expected(tensors: dict[str, Tensor], names: str, x: Tensor) -> Tensor:
    """What the modules give for inputs [M, IN], in float64, with the inputs rounded to fp8."""
    found = []
    for name in names:
        scale = tensors[f"{name}.input_scale"].double()
        inputs = (x.double() / scale).clamp(-448, 448).float().to(FP8).double() * scale
        weight = tensors[f"{name}.weight"].double() * tensors[f"{name}.weight_scale"].double()
        found.append(inputs @ weight.T)
    return torch.cat(found, dim=1)


def run(linear: StaticLinear | SplitLinear, x: Tensor) -> Tensor:
    return linear(write(x, linear.input_format))


class Casts(TorchFunctionMode):
    """Sees what is cast to fp8. Whether a cast saturates or gives NaN depends on torch's version and on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: list[float] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.to and FP8 in args:
            self.largest.append(args[0].abs().max().item())
        return func(*args, **(kwargs or {}))


def assert_rounded(found: Tensor, wanted: Tensor) -> None:
    """`found` is `wanted` in bfloat16, but for the rounding of float32 sums."""
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, rtol=ROUNDING * 1.01, atol=1e-5)


def test_a_linear_gives_the_dequantized_product_to_one_rounding(checkpoint) -> None:
    tensors = module("a", 16, 2**-7, 0.03)
    x = torch.randn(5, IN).to(torch.bfloat16)

    linear = Static(None).linear(checkpoint(tensors), ("a",), (16,), IN)

    assert (linear.in_features, linear.out_features) == (IN, 16)
    assert_rounded(run(linear, x), expected(tensors, "a", x))


def test_merged_modules_of_one_input_scale_share_what_the_norm_before_them_writes(checkpoint) -> None:
    tensors = module("q", 32, 0.01, 0.03) | module("k", 16, 0.002, 0.03) | module("v", 16, 0.05, 0.03)
    x = torch.randn(5, IN).to(torch.bfloat16)

    linear = Static(None).linear(checkpoint(tensors), ("q", "k", "v"), (32, 16, 16), IN)

    assert linear.input_format is not None
    assert linear.input_format.dtype == FP8
    assert linear.input_format.scale == pytest.approx(0.03)
    assert_rounded(run(linear, x), expected(tensors, "qkv", x))


def test_merged_modules_of_other_input_scales_each_quantize_by_their_own(checkpoint) -> None:
    tensors = module("q", 32, 0.01, 0.03) | module("k", 16, 0.01, 0.007) | module("v", 16, 0.01, 0.03)
    x = torch.randn(5, IN).to(torch.bfloat16)

    linear = Static(None).linear(checkpoint(tensors), ("q", "k", "v"), (32, 16, 16), IN)

    assert (linear.input_format, linear.out_features) == (None, 64)
    assert_rounded(run(linear, x), expected(tensors, "qkv", x))


@pytest.mark.parametrize("other_scale", [0.03, 0.007])
def test_each_module_keeps_its_own_bias(checkpoint, other_scale: float) -> None:
    tensors = module("a", 16, 0.01, 0.03, bias=True) | module("b", 32, 0.01, other_scale, bias=True)
    bare = {name: tensor for name, tensor in tensors.items() if not name.endswith("bias")}
    x = torch.randn(5, IN).to(torch.bfloat16)

    biased = run(Static(None).linear(checkpoint(tensors), ("a", "b"), (16, 32), IN), x)
    product = run(Static(None).linear(checkpoint(bare), ("a", "b"), (16, 32), IN), x)

    assert torch.equal(biased, product + torch.cat([tensors["a.bias"], tensors["b.bias"]]))


@pytest.mark.parametrize("other_scale", [0.03, 0.007])
def test_inputs_of_ten_times_the_calibrated_maximum_are_clamped_and_stay_finite(checkpoint, other_scale: float) -> None:
    tensors = module("a", 16, 0.01, 0.03) | module("b", 16, 0.01, other_scale)
    x = torch.full((2, IN), 10 * 448 * 0.03, dtype=torch.bfloat16)
    x[1] = -x[1]

    linear = Static(None).linear(checkpoint(tensors), ("a", "b"), (16, 16), IN)
    with Casts() as casts:
        found = run(linear, x)

    assert casts.largest
    assert set(casts.largest) == {448.0}
    assert torch.isfinite(found).all()
    assert_rounded(found, expected(tensors, "ab", x))


def test_a_cast_gives_the_nearest_number_that_fp8_has() -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(FP8).double()
    numbers = numbers[numbers.isfinite()]
    x = torch.cat([torch.randn(500) * 100, torch.tensor([0.0, LARGEST, -LARGEST, 1e30, -torch.inf])])

    found = to_fp8(x, 1.0).double()

    held = x.double().clamp(-448, 448)
    assert torch.equal((found - held).abs(), (numbers - held[:, None]).abs().amin(1))


def test_rows_do_not_depend_on_others(checkpoint) -> None:
    linear = Static(None).linear(checkpoint(module("a", 16, 0.01, 0.03)), ("a",), (16,), IN)
    x = torch.randn(6, IN).to(torch.bfloat16)
    others = torch.cat([x[:1], 1000 * x[1:]])

    assert torch.equal(run(linear, x[:1]), run(linear, others)[:1])


@pytest.mark.parametrize("kind", ["weight_scale", "input_scale"])
@pytest.mark.parametrize("value", [0.0, -0.01, float("nan"), float("inf")])
def test_a_scale_that_cannot_divide_is_refused_by_the_name_of_its_tensor(checkpoint, kind: str, value: float) -> None:
    tensors = module("layers.3.a", 16, 0.01, 0.03) | {f"layers.3.a.{kind}": torch.tensor([value])}

    with pytest.raises(SetupError, match=rf"scale layers\.3\.a\.{kind} is {value:g}, .*fetch it again"):
        Static(None).linear(checkpoint(tensors), ("layers.3.a",), (16,), IN)


def test_a_missing_input_scale_is_refused_by_name(checkpoint) -> None:
    tensors = module("a", 16, 0.01, 0.03)
    del tensors["a.input_scale"]

    with pytest.raises(SetupError, match=r"no tensor a\.input_scale"):
        Static(None).linear(checkpoint(tensors), ("a",), (16,), IN)


def test_a_plain_checkpoint_without_a_table_is_refused_and_told_what_would_do(checkpoint) -> None:
    weights = checkpoint({"a.weight": torch.randn(16, IN)})

    with pytest.raises(SetupError, match=r"a has no scales: .*SPINF_FP8S_SCALES.*--quant fp8row or bf16"):
        Static(None).linear(weights, ("a",), (16,), IN)


def test_a_plain_checkpoint_takes_its_input_scales_from_the_table(checkpoint) -> None:
    weight = torch.randn(16, IN)
    x = torch.randn(5, IN).to(torch.bfloat16)
    table = ScaleTable(revision="r", provenance={}, scales={"a": 2**-5})

    linear = Static(table).linear(checkpoint({"a.weight": weight}), ("a",), (16,), IN)

    weight_scale = weight.abs().max() / 448
    stored = {
        "a.weight": (weight / weight_scale).to(FP8),
        "a.weight_scale": weight_scale.reshape(1),
        "a.input_scale": torch.tensor([2**-5]),
    }
    assert linear.input_format is not None
    assert linear.input_format.scale == 2**-5
    assert_rounded(run(linear, x), expected(stored, "a", x))


def test_a_checkpoint_with_scales_of_its_own_keeps_them_though_there_is_a_table(checkpoint) -> None:
    table = ScaleTable(revision="r", provenance={}, scales={"a": 2**-5})

    linear = Static(table).linear(checkpoint(module("a", 16, 0.01, 0.25)), ("a",), (16,), IN)

    assert linear.input_format is not None
    assert linear.input_format.scale == 0.25


@pytest.mark.parametrize(("rows", "products"), [(16, 1), (JOINED_ROWS, 1), (JOINED_ROWS + 16, 2)])
@pytest.mark.parametrize("bias", [False, True])
def test_few_rows_take_one_product_for_merged_modules(
    checkpoint, monkeypatch: pytest.MonkeyPatch, rows: int, products: int, bias: bool
) -> None:
    tensors = module("a", 16, 2**-7, 0.25, bias) | module("b", 32, 3 * 2**-9, 0.25, bias)
    x = torch.randn(rows, IN).to(torch.bfloat16)
    apart = Static(None).linear(checkpoint(tensors), ("a", "b"), (16, 32), IN)
    seen = []

    def counted(x: Tensor, weight: Tensor, *scales: Tensor) -> Tensor:
        seen.append(len(weight))
        return scaled_product(x, weight, *scales)

    monkeypatch.setattr(linears, "joins_exactly", lambda *_: True)
    monkeypatch.setattr(linears, "scaled_product", counted)
    joining = Static(None).linear(checkpoint(tensors), ("a", "b"), (16, 32), IN)
    inputs = write(x, joining.input_format)
    found = joining.parts(inputs, (16, 32))

    assert len(seen) == products
    for mine, other in zip(found, apart.parts(inputs, (16, 32)), strict=True):
        assert_rounded(mine, other.double())
    assert_rounded(joining(inputs), apart(inputs).double())


def scales_one_by_one(x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor) -> Tensor:
    """In float64 the sums are exact, so only the order of the scales can tell."""
    return ((x.double() @ weight.double().T).float() * x_scale * weight_scale).to(torch.bfloat16)


def numbers_scaled_at_once(x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor) -> Tensor:
    if x_scale.ndim:
        return scales_one_by_one(x, weight, x_scale, weight_scale)
    return ((x.double() @ weight.double().T).float() * (x_scale * weight_scale)).to(torch.bfloat16)


def no_rows_scaled(x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor) -> Tensor:
    if x_scale.ndim:
        raise ValueError("invalid scaling configuration")
    return scales_one_by_one(x, weight, x_scale, weight_scale)


@pytest.mark.parametrize(
    ("product", "input_scale", "same"),
    [
        (scales_one_by_one, 0.03, True),
        (numbers_scaled_at_once, 0.03, False),
        (numbers_scaled_at_once, 0.5, True),
        (no_rows_scaled, 0.5, False),
    ],
)
def test_modules_are_joined_where_the_device_scales_one_product_as_it_does_many(
    monkeypatch: pytest.MonkeyPatch, product: Any, input_scale: float, same: bool
) -> None:
    monkeypatch.setattr(linears, "scaled_product", product)
    assert gives_the_same(torch.device("cpu"), (2048, 1024), IN, input_scale) == same
