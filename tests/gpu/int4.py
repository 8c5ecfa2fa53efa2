"""Parts of check.py about products with weights of 4 bits, as torch packs them for a GPU.

On sm_90a those of at most 64 rows are own kernels; elsewhere such are torch's, and those of more rows are
a library's with weights that a kernel has unpacked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import kiln_torch
import torch
from bench import in_turns, replayed
from measure import Results, compiled
from products import MOST_ERROR, is_own, random_matrix

F = torch.nn.functional
aten = torch.ops.aten
Fn = Callable[..., Any]
HALF = torch.bfloat16

GROUPS, INNER = (32, 64, 128, 256), (2, 4, 8)
ROWS = (1, 2, 5, 8, 11, 16, 17, 33, 64, 65, 128, 512)
FEWER_ROWS = (1, 9, 24, 64, 130)
# N, K; the last are no whole tiles.
SIZES = ((4096, 4096), (768, 3072), (11008, 1024), (1000, 1280), (520, 2304), (8, 256))


class Packed:
    """Weights, and what a product with them is compared with."""

    def __init__(self, n: int, k: int, inner: int, group: int) -> None:
        self.group = group
        pairs = torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8)
        numbers = torch.stack((pairs >> 4, pairs & 15), -1).view(n, k)
        self.words = aten._convert_weight_to_int4pack(pairs, inner)
        self.scales = ((torch.rand(k // group, n, 2, device="cuda") - 0.4) * 0.1).to(HALF)
        scale, zero = (t.double().repeat_interleave(group, 0).t() for t in self.scales.unbind(-1))
        # Rounded as torch's kernel rounds them; `exact` is without.
        self.exact = (numbers.double() - 8) * scale + zero
        self.rounded = self.exact.to(HALF)


def _product(x: torch.Tensor, words: torch.Tensor, group: int, scales: torch.Tensor) -> torch.Tensor:
    return aten._weight_int4pack_mm(x, words, group, scales)


def _off(found: torch.Tensor, wide: torch.Tensor) -> float:
    assert found.shape == wide.shape, (found.shape, wide.shape)
    return float((found.double() - wide.double()).norm() / wide.double().norm())


def _check(packed: Packed, m: int, by_kiln: Fn) -> None:
    x = random_matrix(m, packed.exact.shape[1], dtype=HALF)
    args = (x, packed.words, packed.group, packed.scales)
    for _ in range(2):
        torch.full((2 * m * packed.exact.shape[0],), float("nan"), device="cuda", dtype=HALF)
        ours = by_kiln(*args)
    eager = _product(*args)
    most = MOST_ERROR[HALF]
    for name, wide, limit in (
        ("unpacked weights", x.double() @ packed.rounded.double().t(), most),
        ("weights that are not rounded", x.double() @ packed.exact.t(), 2 * most),
        ("torch's", eager, 2 * most),
    ):
        off = _off(ours, wide)
        assert off <= limit, f"{m} rows: off {name} by {off:.2e} of the norm"


def _products(run: Results) -> None:
    for n, k in SIZES:
        for inner in INNER:
            for group in GROUPS:
                if k % (16 * inner) or k % group:
                    continue
                if (n, k) == SIZES[0] and (inner, group) not in ((8, 128), (2, 32)):
                    continue
                rows = ROWS if (n, k) == SIZES[0] else FEWER_ROWS
                with run.case(f"int4 {n} x {k}, {inner} tiles, groups of {group}, {len(rows)} numbers of rows"):
                    packed = Packed(n, k, inner, group)
                    for m in rows:
                        kiln_torch.reset()
                        _check(packed, m, compiled(_product))
                        if is_own() and m <= 64:
                            assert kiln_torch.stats()["steps"]["library"] == 0, f"{m} rows: left to a library"


def _epilogues(run: Results) -> None:
    n, k, group = 1536, 1024, 64
    packed = Packed(n, k, 4, group)
    for m in (1, 7, 40):
        x, y, bias = (random_matrix(*s, dtype=HALF) for s in ((m, k), (m, n), (n,)))
        more: dict[str, tuple[Fn, list[torch.Tensor]]] = {
            "bias and gelu": (lambda p, b: F.gelu(p + b, approximate="tanh"), [bias]),
            "silu times another": (lambda p, y: F.silu(p) * y, [y]),
            "to float32": (lambda p: p.float() * 2, []),
            "two results": (lambda p: torch.stack((F.gelu(p), p.sigmoid())), []),
        }
        for name, (then, args) in more.items():
            with run.case(f"int4 {m} rows, then {name}"):
                by_kiln = compiled(lambda x, w, s, *rest, then=then: then(_product(x, w, group, s), *rest))
                ours = by_kiln(x, packed.words, packed.scales, *args)
                wide = then((x.double() @ packed.rounded.double().t()).float(), *(a.float() for a in args))
                off = _off(ours, wide)
                assert off <= MOST_ERROR[HALF], f"off by {off:.2e} of the norm"


def _in_a_row(run: Results) -> None:
    """Layers after each other: each reads what the one before wrote."""
    layers = [Packed(2048, 2048, 8, 128) for _ in range(8)]

    def all_layers(x: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
        for words, scales in zip(operands[::2], operands[1::2], strict=True):
            x = _product(x, words, 128, scales) * 0.02
        return x

    operands = [t for layer in layers for t in (layer.words, layer.scales)]
    for m in (1, 16, 64):
        with run.case(f"int4 {m} rows, eight layers"):
            x, by_kiln = random_matrix(m, 2048, dtype=HALF), compiled(all_layers)
            wide = x.double()
            for layer in layers:
                wide = wide @ layer.rounded.double().t() * 0.02
            for _ in range(20):
                off = _off(by_kiln(x, *operands), wide)
                assert off <= 4 * MOST_ERROR[HALF], f"off by {off:.2e} of the norm"


def int4(run: Results) -> None:
    with torch.no_grad():
        _products(run)
        _epilogues(run)
        _in_a_row(run)
    with run.case("int4 rows of a number that is known in the run"):
        packed = Packed(512, 512, 4, 64)
        by_kiln = torch.compile(_product, backend="kiln", dynamic=True)
        for m in (3, 70, 9):
            _check(packed, m, by_kiln)


MEASURED = ((4096, 4096), (6144, 4096), (11008, 4096), (14336, 4096), (4096, 11008), (4096, 14336))
MEASURED_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512)
GROUP = 128
CACHE_BYTES = 120_000_000  # of weights in turn, so that the second-level cache holds none


def speed(run: Results) -> None:
    print(f"\nus of GPU time a product with weights of 4 bits in groups of {GROUP}, in a graph of several that no cache")
    print("holds: torch's; cuBLAS with weights of 16 bits; kiln (TB a second of what kiln's has to read)")
    print(f"| N x K; rows: | {' | '.join(map(str, MEASURED_ROWS))} |")
    ratios: dict[str, list[float]] = {"torch's": [], "cuBLAS's": []}
    for n, k in MEASURED:
        with run.case(f"bench int4 {n} x {k}"), torch.no_grad():
            number_bytes = n * k / 2 + n * k / GROUP * 4
            count = math.ceil(CACHE_BYTES / number_bytes)
            pairs = torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8)
            packed = [aten._convert_weight_to_int4pack(pairs, 8) for _ in range(count)]
            scales = [(torch.rand(k // GROUP, n, 2, device="cuda") * 0.01).to(HALF) for _ in range(count)]
            wide = [random_matrix(n, k, dtype=HALF) for _ in range(max(2, count // 3))]
            cells = []
            for m in MEASURED_ROWS:
                x = random_matrix(m, k, dtype=HALF)

                def by_words(x: torch.Tensor, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
                    pairs = zip(operands[::2], operands[1::2], strict=True)
                    return tuple(_product(x, w, GROUP, s) for w, s in pairs)

                operands = [t for pair in zip(packed, scales, strict=True) for t in pair]
                kiln_torch.reset()
                by_kiln = compiled(by_words)
                sides = {
                    "torch's": (lambda x=x: by_words(x, *operands), count),
                    "cuBLAS's": (lambda x=x: tuple(F.linear(x, w) for w in wide), len(wide)),
                    "kiln": (lambda x=x, f=by_kiln: f(x, *operands), count),
                }
                times = in_turns({side: replayed(f, calls=1) for side, (f, _) in sides.items()}, rounds=5)
                took = {side: times[side] * 1e3 / products for side, (_, products) in sides.items()}
                ours = took["kiln"]
                if m <= 64:
                    for side, found in ratios.items():
                        found.append(took[side] / ours)
                others = "; ".join(f"{took[side]:.1f}" for side in ratios)
                cells.append(f"{others}; {ours:.1f} ({number_bytes / ours / 1e6:.2f})")
            print(f"| {n} x {k} | {' | '.join(cells)} |", flush=True)
    for side, found in ratios.items():
        if found:
            mean = math.exp(sum(map(math.log, found)) / len(found))
            print(f"up to 64 rows: speed in {side}: geometric mean {mean:.2f}, least {min(found):.2f}")
