"""Parts of check.py about decoding: products of at most 64 rows, whose time is that of reading weights.

On sm_90a they are own kernels where the compiler's cost model expects those to be faster than a library's;
elsewhere all are library steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import kiln_torch
import torch
from bench import in_turns, replayed
from measure import Results, compiled
from products import HALVES, MOST_ERROR, Tensors, check_product, is_own, random_matrix

F = torch.nn.functional
aten = torch.ops.aten
Fn = Callable[..., Any]


def _int8(*sizes: int) -> torch.Tensor:
    return torch.randint(-128, 128, sizes, device="cuda", dtype=torch.int8)


def _linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w)


def _scaled(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Weights of 8 bits, a scale for each of the result's columns."""
    return F.linear(x, w.to(x.dtype)) * scale


def _operands(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return random_matrix(m, k, dtype=dtype), random_matrix(n, k, dtype=dtype) * k**-0.5


# N, K; the last are no whole tiles.
SIZES = ((4096, 4096), (768, 3072), (2304, 768), (14336, 1024), (1000, 1032), (520, 136))
ROWS = (1, 2, 5, 8, 16, 17, 33, 64)


def _bare(run: Results) -> None:
    for n, k in SIZES:
        for dtype in HALVES:
            with run.case(f"decode {n} x {k} {dtype}, {len(ROWS)} numbers of rows"):
                for m in ROWS:
                    check_product(_linear, list(_operands(m, n, k, dtype)))


def _int8_weights(run: Results) -> None:
    for n, k in ((4096, 4096), (768, 3072), (1000, 1040), (520, 144)):
        for dtype in HALVES:
            with run.case(f"decode int8 {n} x {k} {dtype}, {len(ROWS)} numbers of rows"):
                for m in ROWS:
                    x, scale = random_matrix(m, k, dtype=dtype), torch.rand(n, device="cuda").to(dtype)
                    check_product(_scaled, [x, _int8(n, k), scale * 1e-2], widens=True)


def _epilogues(run: Results) -> None:
    half = torch.bfloat16
    for m in (1, 7, 40):
        n, k = 1544, 1024
        row, column = random_matrix(m, n, dtype=half), random_matrix(n, dtype=half)
        more: dict[str, tuple[Fn, Tensors]] = {
            "bias": (lambda p, b: p + b, [column]),
            "bias and gelu": (lambda p, b: F.gelu(p + b, approximate="tanh"), [column]),
            "silu times another": (lambda p, y: F.silu(p) * y, [row]),
            "residual": (lambda p, y: p + y, [row]),
            "to float32": (lambda p: p.float() * 2, []),
            "two results": (lambda p: (F.gelu(p), p.sigmoid()), []),
            "mask": (lambda p, y: torch.where(y > 0, p, torch.zeros_like(p)), [row]),
        }
        for name, (then, args) in more.items():
            with run.case(f"decode {m} rows, then {name}"):
                x, w = _operands(m, n, k, half)
                check_product(lambda x, w, *rest, then=then: then(x @ w.t(), *rest), [x, w, *args])
    with run.case("decode a batch of sequences of one token"):
        x, w = _operands(16, 768, 512, half)
        check_product(lambda x, w: F.silu(F.linear(x, w)), [x.view(16, 1, 512), w])
    with run.case("decode a part of a wider matrix"):
        wide, w = random_matrix(9, 3 * 256, dtype=half), random_matrix(512, 256, dtype=half) / 16
        check_product(lambda x, w: F.linear(x[:, 256:512], w), [wide, w])
    with run.case("decode a weight that lies elsewhere in its tensor"):
        x, w = _operands(4, 512, 256, half)
        check_product(lambda x, w: F.linear(x, w[256:]), [x, w])


def _int8pack(run: Results) -> None:
    for m in (1, 8, 50):
        with run.case(f"decode _weight_int8pack_mm, {m} rows"):
            x = random_matrix(m, 1024, dtype=torch.bfloat16)
            scale = (torch.rand(768, device="cuda") * 1e-2).bfloat16()
            w, by_kiln = _int8(768, 1024), compiled(lambda *args: aten._weight_int8pack_mm(*args))
            ours = by_kiln(x, w, scale)
            wide = x.float() @ w.float().t() * scale.float()
            error = float((ours.float() - wide).norm() / wide.norm())
            assert error <= MOST_ERROR[torch.bfloat16], f"off by {error:.2e} of the norm"


def _in_a_row(run: Results) -> None:
    """Layers after each other: each reads what the one before wrote, and all replay as one graph."""
    half = torch.bfloat16

    def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = F.linear(x, w)
        return x

    for m in (1, 16, 64):
        with run.case(f"decode {m} rows, eight layers"):
            weights = [random_matrix(2048, 2048, dtype=half) * 2048**-0.5 for _ in range(8)]
            x, by_kiln = random_matrix(m, 2048, dtype=half), compiled(layers)
            wide = layers(x.double(), *(w.double() for w in weights))
            for _ in range(20):
                ours = by_kiln(x, *weights)
                error = float((ours.double() - wide).norm() / wide.norm())
                assert error <= 3 * MOST_ERROR[half], f"off by {error:.2e} of the norm"
                torch.full((m * 2048 * 8,), float("nan"), device="cuda")


def decode(run: Results) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        _bare(run)
        _int8_weights(run)
        _epilogues(run)
        _int8pack(run)
        _in_a_row(run)
    steps = kiln_torch.stats()["steps"]
    print(f"the last: {steps}")
    if is_own():
        with run.case("a product of one row is a kernel of ours"):
            check_product(_linear, list(_operands(1, 4096, 4096, torch.bfloat16)))
            assert kiln_torch.stats()["steps"]["library"] == 0, "left to a library"


# Of the table that these are compared with: N, K.
MEASURED = ((4096, 4096), (6144, 4096), (14336, 4096), (4096, 14336), (128256, 4096))
MEASURED_ROWS = (1, 2, 4, 8, 16, 32, 64)
CACHE_BYTES = 200_000_000  # of weights in turn, so that the second-level cache holds none


def _each(fn: Fn) -> Fn:
    """The product with each of several weights: one graph, as in a model."""
    return lambda x, *weights: tuple(fn(x, w) for w in weights)


def _row(name: str, n: int, k: int, weights: Tensors, library: Fn, own: Fn) -> list[float]:
    """Prints one line of figures; returns the speed in the library's for each number of rows."""
    cells, ratios = [], []
    for m in MEASURED_ROWS:
        x = random_matrix(m, k, dtype=torch.bfloat16)
        kiln_torch.reset()
        by_kiln = compiled(_each(own))
        sides = {"library": _each(library), "kiln": by_kiln}
        times = in_turns(
            {side: replayed(lambda f=f: f(x, *weights), calls=1) for side, f in sides.items()}, rounds=5
        )
        of_library, of_kiln = (times[side] * 1e3 / len(weights) for side in sides)
        steps = kiln_torch.stats()["steps"]["library"]
        ratios.append(of_library / of_kiln)
        cells.append(f"{of_library:.1f}; {of_kiln:.1f}{' library' if steps else ''}")
    print(f"| {name} {n} x {k} | {' | '.join(cells)} |", flush=True)
    return ratios


# A layer of Llama of 8 billion parameters: width, heads, those of keys, of a head, of the hidden layer.
WIDTH, HEADS, KEY_HEADS, HEAD, HIDDEN, LAYERS = 4096, 32, 8, 128, 14336, 4


def _norm(x: torch.Tensor) -> torch.Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def _layers(x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """One token each of a batch through layers, each with four weights, on keys and values that are there."""
    for i in range(0, len(weights), 4):
        of_qkv, of_out, of_up, of_down = weights[i : i + 4]
        q = F.linear(_norm(x), of_qkv)[:, :WIDTH].view(-1, HEADS, 1, HEAD)
        attended = F.scaled_dot_product_attention(q, keys[i // 4], values[i // 4], enable_gqa=True)
        x = x + F.linear(attended.reshape(-1, WIDTH), of_out)
        gate, up = F.linear(_norm(x), of_up).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, of_down)
    return x


def _time_layers(run: Results) -> None:
    half = torch.bfloat16
    sizes = ((WIDTH + 2 * KEY_HEADS * HEAD, WIDTH), (WIDTH, WIDTH), (2 * HIDDEN, WIDTH), (WIDTH, HIDDEN))
    weights = [random_matrix(n, k, dtype=half) * k**-0.5 for _ in range(LAYERS) for n, k in sizes]
    print("\nus of GPU time a layer of Llama 8B, one token a sequence, in one CUDA graph: eager; inductor; kiln")
    for batch, length in ((1, 2048), (8, 2048), (32, 2048)):
        with run.case(f"bench decode layers, batch {batch}, {length} keys"):
            x = random_matrix(batch, WIDTH, dtype=half)
            keys, values = (
                torch.randn(LAYERS, batch, KEY_HEADS, length, HEAD, device="cuda").to(half) for _ in "kv"
            )
            args = (x, keys, values, *weights)
            kiln_torch.reset()
            by_kiln = compiled(_layers)
            ours, eager = by_kiln(*args).float(), _layers(*args).float()
            error = float((ours - eager).norm() / eager.norm())
            by_inductor = torch.compile(_layers, dynamic=False)
            sides = {"eager": _layers, "inductor": by_inductor, "kiln": by_kiln}
            times = in_turns({name: replayed(lambda f=f: f(*args), calls=1) for name, f in sides.items()})
            cells = "; ".join(f"{times[name] * 1e3 / LAYERS:.1f}" for name in sides)
            print(f"batch {batch}, {length} keys: {cells}; off eager's by {error:.1e}; {kiln_torch.stats()['steps']}")
            assert error <= 10 * MOST_ERROR[half], "the result is wrong"


def speed(run: Results) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    print("\nus of GPU time a product, a graph of products with weights that no cache holds: library; kiln")
    print(f"| rows: | {' | '.join(map(str, MEASURED_ROWS))} |")
    ratios: dict[str, list[float]] = {"bf16": [], "int8": []}
    with torch.no_grad():
        for n, k in MEASURED:
            count = max(2, math.ceil(CACHE_BYTES / (2 * n * k)))
            with run.case(f"bench decode {n} x {k}"):
                weights = [random_matrix(n, k, dtype=torch.bfloat16) for _ in range(count)]
                ratios["bf16"] += _row("bf16", n, k, weights, F.linear, F.linear)
                # The library's are the products with weights of 16 bits: torch's of 8 bits are slower.
                narrow, scale = [_int8(n, k) for _ in weights], torch.rand(n, device="cuda").bfloat16()
                wide = {w.data_ptr(): v for w, v in zip(narrow, weights, strict=True)}
                ratios["int8"] += _row(
                    "int8", n, k, narrow,
                    lambda x, w, wide=wide: F.linear(x, wide[w.data_ptr()]),
                    lambda x, w, scale=scale: _scaled(x, w, scale),
                )  # fmt: skip
                del weights, narrow, wide
    for kind, found in ratios.items():
        if found:
            mean = math.exp(sum(map(math.log, found)) / len(found))
            print(f"{kind}: speed in the library's: geometric mean {mean:.2f}, least {min(found):.2f}")
    with torch.no_grad():
        _time_layers(run)
