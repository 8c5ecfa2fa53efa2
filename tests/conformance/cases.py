"""The op cases that every target runs: a name, a function of tensors, and its arguments.

A new operator adds a case here. Arguments are made from a seed, so that every target sees the same
ones. Sizes are odd on purpose: vector tails, blocks' edges and broadcasting are where targets differ.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Case:
    name: str
    fn: Callable[..., object]
    make: Callable[[], tuple[torch.Tensor, ...]]
    tol: float = 1e-4


def randn(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes).to(dtype)


def integers(*sizes: int, high: int = 50, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, high, sizes).to(dtype)


def _pointwise() -> list[Case]:
    unary = {
        "abs": torch.abs, "ceil": torch.ceil, "cos": torch.cos, "erf": torch.erf,
        "exp": torch.exp, "expm1": torch.expm1, "floor": torch.floor, "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "hardswish": F.hardswish,
        "leaky_relu": F.leaky_relu, "neg": torch.neg, "relu": torch.relu, "round": torch.round,
        "sigmoid": torch.sigmoid, "sign": torch.sign, "silu": F.silu, "sin": torch.sin,
        "softplus": F.softplus, "tanh": torch.tanh, "trunc": torch.trunc,
    }
    positive = {
        "log": torch.log, "log1p": torch.log1p, "log2": torch.log2, "rsqrt": torch.rsqrt,
        "sqrt": torch.sqrt, "reciprocal": torch.reciprocal,
    }
    binary = {
        "add_alpha": lambda x, y: torch.add(x, y, alpha=3), "div": torch.div,
        "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
        "fmod": torch.fmod, "maximum": torch.maximum, "minimum": torch.minimum,
        "mul": torch.mul, "remainder": torch.remainder, "sub": torch.sub,
        "where": lambda x, y: torch.where(x > y, x, y), "atan2": torch.atan2,
    }
    cases = [Case(n, f, lambda: (randn(3, 37) * 3,)) for n, f in unary.items()]
    cases += [Case(n, f, lambda: (randn(3, 37).abs() + 0.1,)) for n, f in positive.items()]
    cases += [Case(n, f, lambda: (randn(5, 1, 17), randn(4, 17))) for n, f in binary.items()]
    cases += [
        Case("pow_tensor", torch.pow, lambda: (randn(40).abs() + 0.1, randn(40))),
        Case("pow_scalar", lambda x: x**2 + x**3 + x**0.5, lambda: (randn(33).abs(),)),
        Case("clamp", lambda x: x.clamp(-0.5, 0.7), lambda: (randn(101),)),
        Case("int_arithmetic", lambda x, y: (x + y, x * y, x // (y + 1), x % (y + 1)),
             lambda: (integers(77) - 25, integers(77))),
        Case("bits", lambda x, y: (x & y, x | y, x ^ y, ~x), lambda: (integers(65), integers(65))),
        Case("shifts", lambda x, y: (x << 3, x >> 3, x << y, x >> y, torch.bitwise_right_shift(x, 70)),
             lambda: (integers(65) - 25, integers(65) - 3)),
        Case("shifts_of_bytes", lambda x: (x >> 4, x << 4, torch.stack((x & 15, x >> 4), -1).view(5, -1)),
             lambda: (integers(5, 33, high=256, dtype=torch.uint8),)),
        Case("logic", lambda x, y: ((x > 0) & (y > 0), (x > 0).logical_or(y > 0), ~(x > 0)),
             lambda: (randn(50), randn(50))),
        Case("bf16", lambda x, y: torch.tanh(x * y) + x,
             lambda: (randn(9, 31, dtype=torch.bfloat16), randn(31, dtype=torch.bfloat16)), 2e-2),
        Case("f16", lambda x, y: torch.exp(x) * y,
             lambda: (randn(9, 31, dtype=torch.float16), randn(31, dtype=torch.float16)), 2e-3),
        Case("f64", lambda x: torch.exp(x) + torch.sin(x), lambda: (randn(41, dtype=torch.float64),)),
        Case("casts", lambda x: (x.to(torch.int32), x.to(torch.bool), x.double(), x.bfloat16()),
             lambda: (randn(35) * 10,)),
    ]
    return cases


def _reductions() -> list[Case]:
    return [
        Case("sum_rows", lambda x: x.sum(-1), lambda: (randn(7, 129),)),
        Case("sum_columns", lambda x: x.sum(0), lambda: (randn(129, 37),)),
        Case("sum_middle", lambda x: x.sum(1), lambda: (randn(5, 19, 21),)),
        Case("sum_all", lambda x: x.sum(), lambda: (randn(67, 71),)),
        Case("mean_keepdim", lambda x: x.mean((0, 2), keepdim=True), lambda: (randn(5, 6, 33),)),
        Case("prod", lambda x: x.prod(-1), lambda: (randn(6, 9),)),
        Case("amax_amin", lambda x: (x.amax(1), x.amin(0)), lambda: (randn(31, 43),)),
        Case("argmax", lambda x: (x.argmax(1), x.argmin(0), x.argmax()), lambda: (randn(23, 41),)),
        Case("argmax_ties", lambda x: (x.argmax(1), x.argmin(1)),
             lambda: (integers(13, 40, high=3).float(),)),
        Case("any_all", lambda x: ((x > 1).any(-1), (x > -2).all(0)), lambda: (randn(9, 35),)),
        Case("max_dim", lambda x: torch.max(x, 1), lambda: (randn(8, 30),)),
        Case("var", lambda x: (x.var(-1), x.std(0, correction=0)), lambda: (randn(11, 50),)),
        Case("sum_int", lambda x: (x.sum(0), x.sum()), lambda: (integers(17, 19),)),
        Case("nan_reductions", lambda x: (x.amax(1), x.sum(1), x.argmax(1)),
             lambda: (torch.where(randn(6, 40) > 1.5, torch.nan, randn(6, 40)),)),
        Case("softmax", lambda x: torch.softmax(x, -1), lambda: (randn(6, 133) * 4,)),
        Case("softmax_columns", lambda x: torch.softmax(x, 0), lambda: (randn(45, 21),)),
        Case("log_softmax", lambda x: torch.log_softmax(x, -1), lambda: (randn(6, 77),)),
        Case("softmax_masked_row", lambda x: torch.softmax(x.masked_fill(x < 0.3, -torch.inf), -1),
             lambda: (randn(8, 20),)),
        Case("layer_norm", lambda x, w, b: F.layer_norm(x, (65,), w, b),
             lambda: (randn(3, 4, 65), randn(65), randn(65))),
        Case("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b),
             lambda: (randn(2, 6, 5, 7), randn(6), randn(6))),
        Case("batch_norm", lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
             lambda: (randn(2, 6, 5, 7), randn(6), randn(6).abs() + 0.5, randn(6), randn(6))),
    ]


def _views_and_indexing() -> list[Case]:
    return [
        Case("permute_add", lambda x, y: x.permute(2, 0, 1) + y,
             lambda: (randn(5, 7, 19), randn(19, 5, 7))),
        Case("transpose_copy", lambda x: x.t().contiguous() * 2, lambda: (randn(37, 53),)),
        Case("reshape_chain", lambda x: (x + 1).view(4, 6, 5).transpose(0, 1).reshape(30, 4) * 2,
             lambda: (randn(8, 15),)),
        Case("slices", lambda x: x[1:-1, ::3] + x[:-2, 1::3], lambda: (randn(9, 30),)),
        Case("cat", lambda x, y: torch.cat([x * 2, y, x], 1), lambda: (randn(4, 9), randn(4, 5))),
        Case("stack_split", lambda x: torch.stack([p * 2 for p in x.split(4)]),
             lambda: (randn(12, 7),)),
        Case("pad", lambda x: F.pad(x, (1, 2, 3, 0), value=1.5) * 2, lambda: (randn(5, 6),)),
        Case("expand", lambda x: x.expand(6, 3, 11) * x.new_ones(3, 1), lambda: (randn(3, 11),)),
        Case("flip_roll", lambda x: x.flip(1) + x.roll(2, 0), lambda: (randn(6, 9),)),
        Case("repeat", lambda x: x.repeat(2, 3) + 1, lambda: (randn(4, 5),)),
        Case("tril_triu", lambda x: x.tril(1) - x.triu(-2), lambda: (randn(9, 11),)),
        Case("arange_mask", lambda x: x * (torch.arange(13, device=x.device) < 7), lambda: (randn(4, 13),)),
        Case("embedding", lambda w, i: F.embedding(i, w) + 1, lambda: (randn(50, 21), integers(3, 8))),
        Case("gather", lambda x, i: torch.gather(x, 1, i), lambda: (randn(5, 50), integers(5, 9))),
        Case("index_select", lambda x, i: x.index_select(1, i), lambda: (randn(4, 50), integers(17))),
        Case("index_negative", lambda x, i: x[:, i - 25], lambda: (randn(4, 50), integers(17))),
        Case("index_two", lambda x, i, j: x[i, j], lambda: (randn(50, 50), integers(9), integers(9))),
        # Of places that are equal eager's on a GPU takes any.
        Case("scatter", lambda x, i, p, v: (x.scatter(1, p, v), x.scatter_add(1, i, v)),
             lambda: (randn(5, 50), integers(5, 9), randn(5, 50).argsort(1)[:, :9].contiguous(), randn(5, 9))),
        Case("scatter_reduce", lambda x, i, v: [x.scatter_reduce(0, i % 4, v, r, include_self=False)
                                                for r in ("mean", "prod", "amax")],
             lambda: (randn(4, 50), integers(9, 50), randn(9, 50))),
        Case("index_add", lambda x, i, v: x.index_add(0, i, v, alpha=2),
             lambda: (randn(50, 33), integers(70), randn(70, 33))),
        Case("index_put", lambda x, i, j, v: x.index_put((i - 25, j), v, accumulate=True),
             lambda: (randn(50, 50), integers(9, 1), integers(7), randn(9, 7))),
        Case("masked_scatter", lambda x, v: x.masked_scatter(x > 0, v),
             lambda: (randn(7, 11), randn(90))),
        Case("scans", lambda x: (x.cumsum(1), x.cumsum(0), x.cumprod(1), x.logcumsumexp(0)),
             lambda: (randn(7, 45),)),
        Case("scans_of_extremes", lambda x: (*x.cummax(1), *x.cummin(0)),
             lambda: (integers(9, 40, high=6).float(),)),
        Case("truth_of_no_dims", lambda x: (torch.any(x > 1, dim=[]), torch.any(x, dim=[], keepdim=True), torch.all(x, dim=[])),
             lambda: (randn(5, 7).round(),)),
        Case("diagonal_scatter", lambda x, y, z: (torch.diagonal_scatter(x, y), torch.diagonal_scatter(x, z, -2, 1, 0)),
             lambda: (randn(5, 7, 3), randn(3, 5), randn(3, 5))),
        Case("index_fill_negative", lambda x, i: x.index_fill(1, i - 25, 3.0),
             lambda: (randn(4, 50), integers(17))),
        Case("slice_scatter", lambda x, y: torch.slice_scatter(x, y, 1, 2, 9, 2),
             lambda: (randn(5, 12), randn(5, 4))),
    ]


def _contractions() -> list[Case]:
    return [
        Case("mm", torch.mm, lambda: (randn(33, 47), randn(47, 29))),
        Case("mm_transposed", lambda x, y: x.t() @ y.t(), lambda: (randn(47, 33), randn(29, 47))),
        Case("mm_one_row", torch.mm, lambda: (randn(1, 301), randn(301, 77))),
        Case("mm_one_column", torch.mm, lambda: (randn(65, 301), randn(301, 1))),
        Case("mm_long", torch.mm, lambda: (randn(20, 5000), randn(5000, 40)), 1e-3),
        Case("mm_f64", torch.mm,
             lambda: (randn(21, 30, dtype=torch.float64), randn(30, 19, dtype=torch.float64))),
        Case("mm_bf16", torch.mm,
             lambda: (randn(40, 64, dtype=torch.bfloat16), randn(64, 50, dtype=torch.bfloat16)),
             2e-2),
        Case("mm_int", torch.mm, lambda: (integers(9, 12), integers(12, 7))),
        Case("linear_gelu", lambda x, w, b: F.gelu(F.linear(x, w, b)),
             lambda: (randn(35, 64), randn(96, 64), randn(96))),
        Case("linear_residual", lambda x, w, b, r: F.linear(x, w, b) + r,
             lambda: (randn(2, 17, 64), randn(50, 64), randn(50), randn(2, 17, 50))),
        Case("bmm", torch.bmm, lambda: (randn(5, 13, 21), randn(5, 21, 17))),
        # Contiguous: eager's own kernels differ in the strides of what they return.
        Case("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v).contiguous(),
             lambda: (randn(2, 3, 19, 16), randn(2, 3, 23, 16), randn(2, 3, 23, 16))),
        Case("attention_by_hand",
             lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v,
             lambda: (randn(2, 3, 19, 16), randn(2, 3, 23, 16), randn(2, 3, 23, 16))),
        Case("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1),
             lambda: (randn(2, 5, 13, 15), randn(11, 5, 3, 3), randn(11))),
        Case("conv2d_stride", lambda x, w: F.conv2d(x, w, stride=2, padding=3),
             lambda: (randn(1, 3, 29, 31), randn(16, 3, 7, 7))),
        Case("conv2d_dilated", lambda x, w: F.conv2d(x, w, dilation=2),
             lambda: (randn(1, 4, 17, 17), randn(6, 4, 3, 3))),
        Case("conv2d_groups", lambda x, w: F.conv2d(x, w, groups=3, padding=1),
             lambda: (randn(2, 6, 9, 9), randn(12, 2, 3, 3))),
        Case("conv2d_depthwise", lambda x, w: F.conv2d(x, w, groups=8, padding=1),
             lambda: (randn(2, 8, 9, 11), randn(8, 1, 3, 3))),
        Case("conv1d", lambda x, w, b: F.conv1d(x, w, b, padding=2),
             lambda: (randn(2, 7, 33), randn(5, 7, 5), randn(5))),
        Case("conv_bn_relu",
             lambda x, w, m, v, g, b: F.relu(F.batch_norm(F.conv2d(x, w), m, v, g, b)),
             lambda: (randn(2, 4, 10, 10), randn(8, 4, 1, 1), randn(8), randn(8).abs() + 0.5,
                      randn(8), randn(8))),
        Case("max_pool", lambda x: F.max_pool2d(x, 3, 2, 1), lambda: (randn(2, 3, 15, 17),)),
        Case("avg_pool", lambda x: F.avg_pool2d(x, 2), lambda: (randn(2, 3, 14, 16),)),
        Case("adaptive_avg_pool", lambda x: F.adaptive_avg_pool2d(x, 1), lambda: (randn(2, 5, 7, 9),)),
    ]


def _convolution_gradients() -> list[Case]:
    """Name -> sizes of input and weight, and what conv_backward takes; all three gradients."""

    def case(
        name: str,
        input_sizes: tuple[int, ...],
        weight_sizes: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        tol: float = 1e-4,
        *,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        transposed: bool = False,
        output_padding: int = 0,
        groups: int = 1,
    ) -> Case:
        spatial = len(input_sizes) - 2
        settings = (
            [stride] * spatial, [padding] * spatial, [dilation] * spatial, transposed,
            [output_padding] * spatial, groups,
        )
        channels = weight_sizes[1] * groups if transposed else weight_sizes[0]

        def fn(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> object:
            return torch.ops.aten.convolution_backward(
                grad, x, weight, [channels], *settings, [True, True, True]
            )

        def make() -> tuple[torch.Tensor, ...]:
            x, weight = randn(*input_sizes, dtype=dtype), randn(*weight_sizes, dtype=dtype)
            out = torch.convolution(x, weight, None, *settings)
            return randn(*out.shape, dtype=dtype), x, weight

        return Case(f"conv_backward_{name}", fn, make, tol)

    half, wide = torch.bfloat16, torch.float64
    return [
        case("2d", (2, 5, 13, 15), (11, 5, 3, 3), padding=1),
        case("wide", (2, 24, 9, 11), (20, 24, 3, 3), padding=1),
        case("stride", (2, 18, 13, 16), (8, 18, 3, 3), stride=2, padding=1),
        case("stride_odd", (1, 20, 14, 17), (12, 20, 3, 5), stride=2, padding=2),
        case("stride_short", (2, 18, 12, 13), (8, 18, 1, 3), stride=2),
        case("stride_three", (1, 17, 16, 19), (6, 17, 5, 4), stride=3, padding=1),
        case("stride_groups", (1, 36, 9, 11), (12, 18, 3, 3), stride=2, padding=1, groups=2),
        case("one_image", (1, 24, 9, 11), (20, 24, 3, 3), padding=1),
        case("one_image_places", (1, 24, 9, 11), (20, 24, 1, 1)),
        case("one_image_places_groups", (1, 24, 9, 11), (20, 12, 1, 1), groups=2),
        case("one_image_many_places", (1, 8, 60, 61), (6, 8, 1, 1)),
        case("transposed_odd", (1, 6, 7, 9), (6, 18, 5, 3), stride=3, padding=1,
             transposed=True),
        case("narrow_stride", (1, 3, 29, 31), (16, 3, 7, 7), stride=2, padding=3),
        case("dilation", (1, 4, 17, 17), (6, 4, 3, 3), dilation=2),
        case("stride_dilation", (1, 4, 17, 18), (6, 4, 3, 3), stride=2, padding=2, dilation=2),
        case("one_by_one", (2, 8, 9, 10), (10, 8, 1, 1)),
        case("one_by_one_stride", (2, 8, 9, 10), (10, 8, 1, 1), stride=2),
        case("patches", (1, 3, 16, 19), (8, 3, 4, 4), stride=4, padding=1),
        case("groups", (2, 36, 9, 9), (12, 18, 3, 3), padding=1, groups=2),
        case("depthwise", (2, 8, 9, 11), (8, 1, 3, 3), stride=2, padding=1, groups=8),
        case("1d", (2, 7, 33), (5, 7, 5), padding=2),
        case("3d", (2, 4, 4, 5, 6), (6, 4, 3, 3, 3), stride=2, padding=1),
        case("transposed", (2, 6, 7, 9), (6, 5, 3, 3), stride=2, padding=1, transposed=True,
             output_padding=1),
        case("transposed_groups", (2, 6, 9), (6, 4, 4), stride=2, padding=1, transposed=True,
             groups=2),
        case("empty_batch", (0, 6, 7, 7), (8, 6, 3, 3), padding=1),
        case("bf16", (2, 18, 9, 11), (8, 18, 3, 3), half, 2e-2, stride=2, padding=1),
        # Eager's own error here is 2.5e-2: it rounds its sums to f16 on the way.
        case("f16", (2, 6, 9, 11), (8, 6, 3, 3), torch.float16, 4e-2, padding=1),
        case("f64", (2, 6, 9, 11), (8, 6, 3, 3), wide, padding=1),
        Case("conv_transposed", lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1),
             lambda: (randn(2, 6, 7, 9), randn(6, 5, 3, 3), randn(5))),
        Case("conv_transposed_disjoint", lambda x, w: F.conv_transpose2d(x, w, stride=2),
             lambda: (randn(2, 6, 7, 9), randn(6, 5, 2, 2))),
        Case("conv_transposed_groups", lambda x, w: F.conv_transpose1d(x, w, None, 3, 2, 1, 2, 2),
             lambda: (randn(2, 6, 9), randn(6, 4, 4))),
    ]


def _pooling_gradients() -> list[Case]:
    aten = torch.ops.aten

    def max_pool(kernel: int, stride: int, padding: int, dilation: int, ceil: bool):
        return lambda x: F.max_pool2d(x, kernel, stride, padding, dilation, bool(ceil), True)

    def max_case(name: str, *settings: int, dtype: torch.dtype = torch.float32) -> Case:
        kernel, stride, padding, dilation, ceil = settings

        def make() -> tuple[torch.Tensor, ...]:
            x = randn(2, 3, 15, 17, dtype=dtype)
            return randn(*max_pool(*settings)(x)[0].shape, dtype=dtype), x

        # Indices that name no element of their windows, as random ones, mean nothing.
        def fn(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return aten.max_pool2d_with_indices_backward(
                grad, x, [kernel] * 2, [stride] * 2, [padding] * 2, [dilation] * 2, bool(ceil),
                max_pool(*settings)(x)[1],
            )

        return Case(f"max_pool_backward_{name}", fn, make, 1e-4 if dtype == torch.float32 else 1e-2)

    def avg_case(name: str, *settings: int, divisor: int | None = None) -> Case:
        kernel, stride, padding, ceil, count_padding = settings

        def make() -> tuple[torch.Tensor, ...]:
            x = randn(2, 3, 15, 17)
            out = F.avg_pool2d(x, kernel, stride, padding, bool(ceil), bool(count_padding), divisor)
            return randn(*out.shape), x

        def fn(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return aten.avg_pool2d_backward(
                grad, x, [kernel] * 2, [stride] * 2, [padding] * 2, bool(ceil), bool(count_padding),
                divisor,
            )

        return Case(f"avg_pool_backward_{name}", fn, make)

    def indexed(grad_sizes: tuple[int, ...]):
        def make() -> tuple[torch.Tensor, ...]:
            x = randn(2, 3, 15, 17)
            return randn(*grad_sizes), x, F.adaptive_max_pool2d(x, grad_sizes[2:], True)[1]

        return make

    return [
        max_case("overlap", 3, 2, 1, 1, 0),
        max_case("disjoint", 2, 2, 0, 1, 0),
        max_case("dilation", 3, 1, 1, 2, 1),
        max_case("bf16", 3, 2, 1, 1, 0, dtype=torch.bfloat16),
        Case("max_pool_3d_backward",
             lambda g, x, i: aten.max_pool3d_with_indices_backward(
                 g, x, [2] * 3, [2] * 3, [0] * 3, [1] * 3, False, i),
             lambda: (randn(2, 3, 2, 3, 3), (x := randn(2, 3, 5, 6, 7)),
                      F.max_pool3d(x, 2, return_indices=True)[1])),
        avg_case("overlap", 3, 2, 1, 0, 1),
        avg_case("without_padding", 3, 2, 1, 1, 0),
        avg_case("divisor", 2, 3, 0, 0, 1, divisor=5),
        Case("avg_pool_3d_backward",
             lambda g, x: aten.avg_pool3d_backward(g, x, [2] * 3, [2] * 3, [0] * 3, False, True, None),
             lambda: (randn(2, 3, 2, 3, 3), randn(2, 3, 5, 6, 7))),
        Case("adaptive_avg_pool_backward", aten._adaptive_avg_pool2d_backward,
             lambda: (randn(2, 3, 4, 5), randn(2, 3, 15, 17))),
        Case("adaptive_avg_pool_backward_up", aten._adaptive_avg_pool2d_backward,
             lambda: (randn(2, 3, 20, 17), randn(2, 3, 15, 17))),
        Case("adaptive_max_pool", lambda x: F.adaptive_max_pool2d(x, (4, 5), True),
             lambda: (randn(2, 3, 15, 17),)),
        Case("adaptive_max_pool_backward", aten.adaptive_max_pool2d_backward, indexed((2, 3, 4, 5))),
        Case("replication_pad_backward",
             lambda g, x: aten.replication_pad2d_backward(g, x, [1, 2, -1, 3]),
             lambda: (randn(2, 3, 11, 13), randn(2, 3, 9, 10))),
    ]


CASES: list[Case] = (
    _pointwise() + _reductions() + _views_and_indexing() + _contractions()
    + _convolution_gradients() + _pooling_gradients()
)
