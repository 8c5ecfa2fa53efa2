"""Parts of check.py that compare single functions with eager and float64, forward and backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from measure import Results, check, compiled

F = torch.nn.functional
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIZES = ((1,), (7,), (255,), (4097,), (3, 4097), (1025, 1031), (5, 1, 7, 3))


def _random(*sizes: int, dtype: torch.dtype, grad: bool = True) -> torch.Tensor:
    x = torch.randn(sizes, device="cuda").to(dtype)
    return x.requires_grad_(grad)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


POINTWISE: dict[str, Callable[..., Any]] = {
    "add_relu": lambda x, y: F.relu(x + y),
    "gelu_times": lambda x, y: F.gelu(x) * y,
    "gelu_tanh": lambda x, y: F.gelu(x + y, approximate="tanh"),
    "silu_sigmoid": lambda x, y: F.silu(x) + torch.sigmoid(y),
    "exp_log": lambda x, y: torch.exp(-x.abs()) + torch.log1p(y.abs()),
    "where": lambda x, y: torch.where(x > y, x.tanh(), y.sin()),
    "clamp_pow": lambda x, y: x.clamp(-1, 1) ** 2 + (y * y + 1).rsqrt(),
    "transposed": lambda x, y: x.movedim(0, -1) + 2 * y.movedim(0, -1),
}


# name: (function, how far its float32 result may be from the true one, in units of its last place
# and, where it is a difference from 1, in those of 1); eager's own may be farther
ACCURATE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "exp": (torch.exp, 2, 0),
    "sigmoid": (torch.sigmoid, 3, 0),
    "tanh": (torch.tanh, 3, 0),
    "silu": (F.silu, 5, 0),
    "gelu": (F.gelu, 6, 4),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), 6, 4),
    "softplus": (F.softplus, 4, 0),
    "elu": (F.elu, 4, 0),
    "over": (lambda x: 3 / x, 2, 0),
    "reciprocal": (torch.reciprocal, 0.51, 0),
    "rsqrt": (torch.rsqrt, 0.51, 0),
    "over_count": (lambda x: x / torch.full_like(x, 768), 0.51, 0),
    "over_one": (lambda x: x / (1 + torch.exp(x.mul(0))), 0.51, 0),
    "maximum": (lambda x: torch.maximum(x, x.flip(0)), 0, 0),
    "minimum": (lambda x: torch.minimum(x, x.flip(0)), 0, 0),
}
# Functions of 16 bits may take what is less for zero.
LEAST = 2.0**-118


def _units_off(found: torch.Tensor, true: torch.Tensor, slack: float) -> torch.Tensor:
    """How many units in the last place of its type each number is off, `slack` of 1 left out; 0 where
    both are NaN or the same infinity."""
    kind = torch.finfo(found.dtype)
    unit = torch.exp2(true.abs().clamp(kind.tiny, kind.max).log2().floor()) * kind.eps
    rounded = true.to(found.dtype)
    same = (found == rounded) | (found.isnan() & rounded.isnan())
    off = ((found.double() - true).abs() - slack).clamp(min=0) / unit
    return torch.where(same, 0.0, off).nan_to_num(torch.inf)


def accuracy(run: Results) -> None:
    """Single functions of every 16-bit number and of a sample of all float32 numbers."""
    bits = torch.arange(1 << 16, dtype=torch.int32, device="cuda").to(torch.int16)
    sample = torch.arange(-(1 << 31), 1 << 31, 257, device="cuda").to(torch.int32)
    inputs = [bits.view(torch.bfloat16), bits.view(torch.float16), sample.view(torch.float32)]
    for (name, (fn, most, of_one)), x in itertools.product(ACCURATE.items(), inputs):
        with run.case(f"accuracy {name} {_name(x.dtype)}"):
            ours, eager, true = compiled(fn)(x), fn(x), fn(x.double())
            is_wide = x.dtype == torch.float32
            slack = of_one * 2.0**-24 + (0 if is_wide else LEAST)
            off = [_units_off(found, true, slack) for found in (ours, eager)]
            # Of 16 bits half a unit is the least that rounding allows.
            allowed = torch.full_like(off[1], most if is_wide else 0.5 + 2**-5)
            bad = off[0] > torch.maximum(allowed, off[1] * 1.5)
            assert not bad.any(), (
                f"{int(bad.sum())} of {len(x)}, as of {x[bad][0].item()}: {ours[bad][0].item()}, "
                f"eager's {eager[bad][0].item()}, true {true[bad][0].item()}"
            )


def pointwise(run: Results) -> None:
    for (name, fn), dtype, sizes in itertools.product(POINTWISE.items(), FLOATS, SIZES):
        if dtype in (torch.float16, torch.float64) and name not in ("add_relu", "exp_log"):
            continue
        with run.case(f"pointwise {name} {_name(dtype)} {list(sizes)}"):
            check(fn, [_random(*sizes, dtype=dtype), _random(*sizes, dtype=dtype)])
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool):
        with run.case(f"pointwise integers {_name(dtype)}"):
            x, y = (torch.randint(0, 2 if dtype == torch.bool else 9, (3, 257), device="cuda") for _ in "ab")
            fn = torch.logical_xor if dtype == torch.bool else lambda a, b: (a + b) * a // (b + 1)
            check(fn, [x.to(dtype), y.to(dtype)])
    with run.case("pointwise a number on the CPU among tensors"):
        check(lambda x, s: x * s + s, [_random(33, dtype=torch.float32), torch.tensor(1.5)])
    with run.case("pointwise made on the GPU"):
        check(lambda x: x + torch.arange(9, device="cuda"), [_random(9, dtype=torch.float32)])
    with run.case("pointwise made on the CPU, copied"):
        check(lambda x: x + torch.arange(9).to(x.device), [_random(9, dtype=torch.float32)])
    with run.case("pointwise no tensor comes in"):
        check(lambda: torch.ones(7, device="cuda").cumsum(0), [])
    with run.case("pointwise empty"):
        check(lambda x: (x * 2).sum(0), [_random(0, 5, dtype=torch.float32)])


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum_all": lambda x: x.sum(),
    "sum_rows": lambda x: x.sum(-1),
    "sum_columns": lambda x: x.sum(0),
    "mean_square": lambda x: x.square().mean(-1, keepdim=True),
    "amax_rows": lambda x: x.amax(-1),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=0),
}


def reductions(run: Results) -> None:
    sizes = ((1, 7), (7, 255), (255, 4097), (4097, 255), (3, 70001), (70001, 3))
    for (name, fn), dtype, shape in itertools.product(REDUCTIONS.items(), FLOATS[:3], sizes):
        with run.case(f"reduction {name} {_name(dtype)} {list(shape)}"):
            check(fn, [_random(*shape, dtype=dtype)])
    for shape in sizes:
        with run.case(f"reduction argmax any cumsum {list(shape)}"):
            x = torch.randperm(shape[0] * shape[1], device="cuda").view(shape).float()
            check(lambda x: (x.argmax(-1), (x > 5).any(0), (x < 9).long().cumsum(-1)), [x])


def _cross_entropy(x: torch.Tensor) -> torch.Tensor:
    target = torch.arange(x.shape[0], device=x.device) % x.shape[1]
    return F.cross_entropy(x, target, label_smoothing=0.1)


ROWS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "softmax_columns": lambda x: x.softmax(0),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6),
    "cross_entropy": _cross_entropy,
}


def rows(run: Results) -> None:
    sizes = ((1, 1), (5, 7), (64, 255), (33, 1024), (9, 4097), (3, 50257), (2, 131072))
    for (name, fn), dtype, shape in itertools.product(ROWS.items(), FLOATS[:3], sizes):
        if name == "cross_entropy" and shape[1] < 2:
            continue
        with run.case(f"rows {name} {_name(dtype)} {list(shape)}"):
            check(fn, [_random(*shape, dtype=dtype)])
    for dtype in FLOATS[:3]:
        with run.case(f"rows layer_norm with weights {_name(dtype)}"):
            args = [_random(*s, dtype=dtype) for s in ((65, 511), (511,), (511,))]
            check(lambda x, w, b: F.layer_norm(x, (511,), w, b), args)
        with run.case(f"rows group_norm {_name(dtype)}"):
            args = [_random(*s, dtype=dtype) for s in ((3, 12, 9, 7), (12,), (12,))]
            check(lambda x, w, b: F.group_norm(x, 4, w, b), args)


def _indexing() -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    ids = torch.randint(0, 50, (6, 11), device="cuda")
    table = _random(50, 24, dtype=torch.float32)
    yield "embedding", lambda w, i: F.embedding(i, w, padding_idx=3), [table, ids]
    yield "gather", lambda x, i: x.gather(1, i % 24), [table, ids]
    yield "index", lambda x, i: x[i[:, 0], i[:, 1] % 24], [table, ids]
    yield "scatter_add", lambda x, i: x.new_zeros(6, 50).scatter_add(1, i, x[:6, :11]), [table, ids]
    yield "index_put", lambda x, i: x.index_put((i[:, 0],), x[:6], accumulate=True), [table, ids]
    yield "sort", lambda x: x.sort(-1), [table]
    yield "topk", lambda x: x.topk(5), [table]
    yield "cat_split", lambda x: torch.cat([x[:, 5:], x[:, :5]], 1).chunk(3, 0), [table]
    image = _random(2, 3, 17, 19, dtype=torch.float32)
    yield "max_pool", lambda x: F.max_pool2d(x, 3, 2, 1), [image]
    yield "avg_pool", lambda x: F.avg_pool2d(x, 3, 2, 1), [image]
    yield "bilinear", lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), [image]
    yield "pad", lambda x: F.pad(x, (1, 2, 3, 4), mode="reflect"), [image]


def operators(run: Results) -> None:
    for name, fn, args in _indexing():
        with run.case(f"operators {name}"):
            check(fn, args)
    for dtype in FLOATS[:3]:
        a, b, c = (_random(*s, dtype=dtype) for s in ((65, 127), (127, 96), (96,)))
        with run.case(f"operators addmm_gelu {_name(dtype)}"):
            check(lambda a, b, c: F.gelu(torch.addmm(c, a, b)), [a, b, c])
        q, k, v = (_random(2, 3, 65, 64, dtype=dtype) for _ in range(3))
        with run.case(f"operators attention {_name(dtype)}"):
            check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [q, k, v])
        x, w = _random(2, 5, 15, 17, dtype=dtype), _random(8, 5, 3, 3, dtype=dtype)
        with run.case(f"operators convolution {_name(dtype)}"):
            check(lambda x, w: F.relu(F.conv2d(x, w, padding=1)), [x, w])
