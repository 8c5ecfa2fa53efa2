"""Parts of check.py about attention of few queries, as in decoding, whose time is that of reading keys and values.

On sm_90a it is an own kernel where the compiler's cost model expects that to be faster than a library's; elsewhere
it is a library step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import kiln_torch
import torch
from bench import in_turns, replayed
from measure import Results, compiled
from products import HALVES, Tensors, is_own
from torch.nn.attention import SDPBackend, sdpa_kernel

F = torch.nn.functional
Fn = Callable[..., Any]
# By norm, of the error to float64's result of the same 16-bit numbers: weights are rounded, too.
MOST_ERROR = {torch.bfloat16: 5e-3, torch.float16: 8e-4}


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def _repeated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None) -> torch.Tensor:
    """As transformers have it: keys and values for each head."""
    batch, heads, length, width = k.shape
    groups = q.shape[1] // heads

    def repeat(x: torch.Tensor) -> torch.Tensor:
        wide = x[:, :, None].expand(batch, heads, groups, length, width)
        return wide.reshape(batch, heads * groups, length, width)

    return F.scaled_dot_product_attention(q, repeat(k), repeat(v), attn_mask=mask)


def _exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None) -> torch.Tensor:
    """In float64; rows that see no key are 0."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(groups, 1) for x in (k, v))
    scores = q.double() @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v


def _random(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(sizes, device="cuda").to(dtype)


def _operands(
    batch: int, heads: int, shared: int, queries: int, length: int, width: int, dtype: torch.dtype
) -> Tensors:
    return [
        _random(batch, heads, queries, width, dtype=dtype),
        _random(batch, shared, length, width, dtype=dtype),
        _random(batch, shared, length, width, dtype=dtype),
    ]


def _check(
    fn: Fn, args: Tensors, exact: torch.Tensor, owned: bool = False, most: float | None = None
) -> None:
    kiln_torch.reset()
    by_kiln = compiled(fn)
    for _ in range(3):
        torch.full((1 << 22,), float("nan"), device="cuda")  # what is allocated next
        ours = by_kiln(*args).double()
        error = float((ours - exact).norm() / exact.norm())
        library = kiln_torch.stats()["steps"]["library"]
        assert not (owned and is_own() and library), "left to a library"
        limit = most or MOST_ERROR[args[0].dtype]
        assert error <= limit, f"off by {error:.2e} of the norm, {library} library steps"


# Batch, heads, those of keys, queries, keys, width.
SIZES = (
    (1, 32, 8, 1, 2048, 128), (2, 32, 8, 1, 1000, 128), (3, 8, 8, 1, 777, 64), (1, 8, 1, 2, 515, 80),
    (2, 12, 12, 1, 130, 96), (1, 16, 2, 2, 4096, 256), (4, 32, 8, 4, 300, 128), (20, 8, 4, 1, 200, 64),
    (1, 6, 2, 5, 65, 64), (1, 4, 4, 16, 1024, 128), (40, 32, 8, 1, 512, 128), (1, 3, 1, 3, 9000, 256),
)  # fmt: skip


def _masks(batch: int, heads: int, queries: int, length: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    used = torch.randint(1, length, (batch, 1, 1, 1), device="cuda")
    keys = torch.arange(length, device="cuda")
    prefix = keys <= used
    return {
        "prefix": prefix.expand(batch, 1, queries, length),
        "holes": torch.rand(batch, heads, queries, length, device="cuda") < 0.3,
        "added prefix": torch.where(prefix, 0.0, -math.inf).to(dtype).expand(batch, 1, queries, length),
        "added": _random(batch, 1, queries, length, dtype=dtype),
    }


def _sizes(run: Results) -> None:
    for batch, heads, shared, queries, length, width in SIZES:
        for dtype in HALVES:
            name = f"queries {batch} x {heads} on {shared} x {queries}, {length} keys of {width} {dtype}"
            args = _operands(batch, heads, shared, queries, length, width, dtype)
            with run.case(name):
                _check(_attend, args, _exact(*args))
            for kind, mask in _masks(batch, heads, queries, length, dtype).items():
                with run.case(f"{name}, {kind}"):
                    _check(_repeated, [*args, mask], _exact(*args, mask))


def _cached(run: Results) -> None:
    """A cache that is longer than what it holds: what was never written is not read."""
    for dtype in HALVES:
        with run.case(f"queries on a cache that is NaN beyond what it holds {dtype}"):
            q, k, v = _operands(2, 32, 8, 1, 2048, 128, dtype)
            mask = (torch.arange(2048, device="cuda") < 640).view(1, 1, 1, -1)
            exact = _exact(q, k[:, :, :640], v[:, :, :640])
            k[:, :, 640:] = v[:, :, 640:] = float("nan")
            if is_own():
                _check(_repeated, [q, k, v, mask], exact, owned=True)
    with run.case("queries of which one sees no key"):
        q, k, v = _operands(2, 8, 2, 1, 300, 64, torch.bfloat16)
        mask = torch.zeros(2, 1, 1, 300, dtype=torch.bfloat16, device="cuda")
        mask[1] = -math.inf
        _check(_repeated, [q, k, v, mask], _exact(q, k, v, mask))
        # Numbers that leave a row of equals: then all keys count, which are read last.
        mask[1] = -60000.0
        mask[0, ..., 7:] = torch.finfo(torch.bfloat16).min
        _check(_repeated, [q, k, v, mask], _exact(q, k, v, mask), most=3e-2)

    def step(
        q: torch.Tensor, new: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor
    ) -> torch.Tensor:
        keys.index_copy_(2, at, new)
        values.index_copy_(2, at, new * 2)
        mask = torch.arange(keys.shape[2], device="cuda") <= at
        return _repeated(q, keys, values, mask.view(1, 1, 1, -1))

    for dtype in HALVES:
        with run.case(f"queries on a cache that grows {dtype}"):
            q, k, v = _operands(2, 32, 8, 1, 512, 128, dtype)
            by_kiln, ours, theirs = compiled(step), (k.clone(), v.clone()), (k, v)
            for place in range(100, 140, 3):
                at, new = torch.tensor([place], device="cuda"), _random(2, 8, 1, 128, dtype=dtype)
                found = by_kiln(q, new, *ours, at).double()
                theirs[0][:, :, place], theirs[1][:, :, place] = new[:, :, 0], new[:, :, 0] * 2
                exact = _exact(q, theirs[0][:, :, : place + 1], theirs[1][:, :, : place + 1])
                error = float((found - exact).norm() / exact.norm())
                assert error <= MOST_ERROR[dtype], f"at {place}: off by {error:.2e} of the norm"
                assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), "another cache"


def _at_once(run: Results) -> None:
    with run.case("queries in graphs and streams at once"):
        args = _operands(2, 32, 8, 1, 3000, 128, torch.bfloat16)
        by_kiln = compiled(lambda *a: _attend(*a) * 2)
        expected = by_kiln(*args)
        outputs, graphs = [], []
        for _ in range(3):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs.append(by_kiln(*args))
            graphs.append(graph)
        streams = [torch.cuda.Stream() for _ in graphs]
        for _ in range(50):
            for stream, graph in zip(streams, graphs, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, expected) for out in outputs), "another result"


def queries(run: Results) -> None:
    with torch.no_grad():
        _sizes(run)
        _cached(run)
        _at_once(run)
        if is_own():
            with run.case("one query is a kernel of ours"):
                args = _operands(1, 32, 8, 1, 2048, 128, torch.bfloat16)
                _check(_attend, args, _exact(*args), owned=True)


# Batch, heads, those of keys, keys, width.
MEASURED = tuple(
    (batch, 32, 8, length, 128) for batch in (1, 8, 32) for length in (2048, 8192, 32768)
) + (
    (1, 32, 32, 2048, 128), (8, 12, 12, 1024, 64), (1, 12, 12, 1024, 64), (4, 16, 16, 2048, 80),
    (8, 16, 16, 2048, 96), (2, 8, 4, 4096, 256), (1, 32, 8, 512, 128), (16, 32, 8, 512, 128),
    (1, 8, 1, 4096, 128),
)  # fmt: skip
CACHE_BYTES = 200_000_000  # of keys and values in turn, so that the second-level cache holds none
MOST_BYTES = 20_000_000_000


def _each(fn: Fn) -> Fn:
    """The attention of each of several caches: one graph, as in a model."""
    return lambda q, *caches: tuple(fn(q, *caches[i : i + 2]) for i in range(0, len(caches), 2))


def _by(backend: SDPBackend) -> Fn:
    def run(*args: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return _attend(*args)

    return run


def speed(run: Results) -> None:
    print("\nus of GPU time an attention of one query, in a graph of several: cuDNN; flash; kiln (TB/s)")
    half, ratios = torch.bfloat16, []
    for batch, heads, shared, length, width in MEASURED:
        size = 4 * batch * shared * length * width
        if size > MOST_BYTES:
            continue
        count = min(24, max(2, math.ceil(CACHE_BYTES / size)))
        name = f"{batch} x {heads} on {shared}, {length} keys of {width}"
        with run.case(f"bench queries {name}", quiet=True), torch.no_grad():
            q = _random(batch, heads, 1, width, dtype=half)
            caches = [_random(batch, shared, length, width, dtype=half) for _ in range(2 * count)]
            kiln_torch.reset()
            by_kiln = compiled(_each(_attend))
            sides = {
                "cudnn": _each(_by(SDPBackend.CUDNN_ATTENTION)),
                "flash": _each(_by(SDPBackend.FLASH_ATTENTION)),
                "kiln": by_kiln,
            }
            times = in_turns(
                {side: replayed(lambda f=f: f(q, *caches), calls=1) for side, f in sides.items()}, rounds=5
            )
            us = {side: found * 1e3 / count for side, found in times.items()}
            library = kiln_torch.stats()["steps"]["library"]
            ratios.append(min(us["cudnn"], us["flash"]) / us["kiln"])
            rate = size / us["kiln"] / 1e6
            print(
                f"| {name} | {us['cudnn']:.1f}; {us['flash']:.1f}; {us['kiln']:.1f} ({rate:.2f})"
                f"{' library' if library else ''} |",
                flush=True,
            )
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"speed in the faster library's: geometric mean {mean:.2f}, least {min(ratios):.2f}")
