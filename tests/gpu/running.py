"""Parts of check.py about how programs run: changing sizes, streams, threads, capture, errors."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import torch
from measure import Results, compare, compiled, results, widened
from models import Transformer
from torch.utils._pytree import tree_leaves, tree_map

F = torch.nn.functional


def _fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.softmax(F.gelu(x @ w) + 1, dim=-1).sum(0)


def dynamic(run: Results) -> None:
    for name, fn in {
        "pointwise": lambda x, w: F.gelu(x) * x.shape[0] ** -0.5,
        "product": _fn,
        "views": lambda x, w: x.view(-1, 2, w.shape[0] // 2).transpose(0, 1).mean(-1),
    }.items():
        with run.case(f"dynamic {name}"):
            by_kiln = compiled(fn, dynamic=True)
            for n in (2, 7, 255, 1, 64, 4097):
                args = [
                    torch.randn(n, 32, device="cuda", requires_grad=True),
                    torch.randn(32, 16, device="cuda", requires_grad=True),
                ]
                wide = results(fn, tree_map(widened, args))
                compare(results(by_kiln, args), results(fn, args), wide)
    with run.case("dynamic transformer"):
        module = Transformer(100, 64, 2, 4).cuda().eval().requires_grad_(False)
        by_kiln = compiled(module, dynamic=True)
        for b, s in ((2, 17), (1, 33), (5, 8), (2, 64)):
            tokens = torch.randint(0, 100, (b, s), device="cuda")
            torch.testing.assert_close(by_kiln(tokens), module(tokens), atol=1e-4, rtol=1e-4)
    _dynamic_halves(run)


def _attend_causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _attend_shared(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


# On tensor cores: a function, its operands' sizes for numbers of batches and rows, and which of the
# operands' dimensions change.
DYNAMIC_HALVES: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., Any], dict[int, tuple[int, ...]]]] = {
    "attention of one query": (
        _attend_shared,
        lambda b, s: ((b, 8, 1, 128), (b, 2, 256, 128), (b, 2, 256, 128)),
        {0: (0,), 1: (0,), 2: (0,)},
    ),
    "attention of one query, keys": (
        _attend_shared,
        lambda b, s: ((b, 8, 1, 64), (b, 2, s, 64), (b, 2, s, 64)),
        {0: (0,), 1: (0, 2), 2: (0, 2)},
    ),
    "attention": (
        _attend_causal,
        lambda b, s: ((b, 8, s, 128),) * 3,
        {0: (0, 2), 1: (0, 2), 2: (0, 2)},
    ),
    "product of a part": (
        lambda x, w: F.gelu(x[:, 0] @ w),
        lambda b, s: ((128 * b, s, 512), (512, 256)),
        {0: (0, 1)},
    ),
    "product": (
        lambda x, w: F.gelu(x @ w),
        lambda b, s: ((b, s, 512), (512, 256)),
        {0: (0, 1)},
    ),
}


def _dynamic_halves(run: Results) -> None:
    for name, (fn, sizes, dynamic_of) in DYNAMIC_HALVES.items():
        with run.case(f"dynamic {name}, bfloat16"):
            torch._dynamo.reset()
            by_kiln = torch.compile(fn, backend="kiln", options={"fallback": "raise"})
            for b, s in ((2, 200), (5, 97), (3, 640), (7, 256)):
                args = [
                    torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in sizes(b, s)
                ]
                for number, dims in dynamic_of.items():
                    for dim in dims:
                        torch._dynamo.mark_dynamic(args[number], dim)
                compare([by_kiln(*args)], [fn(*args)], [fn(*(x.double() for x in args))])


def _on_streams(by_kiln: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> None:
    expected = _fn(x, w)
    torch.cuda.synchronize()
    for stream in [torch.cuda.Stream() for _ in range(3)]:
        with torch.cuda.stream(stream):
            late = torch.empty_like(x)
            torch.cuda._sleep(20_000_000)  # what is not in the stream's order would see `late` empty
            late.copy_(x)
            got = by_kiln(late, w)
            after = got * 1
            late.zero_()
        stream.synchronize()
        torch.testing.assert_close(after, expected)


def _in_threads(by_kiln: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> None:
    torch.cuda.synchronize()
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                mine = x * seed
                expected = _fn(mine, w)
                for _ in range(50):
                    torch.testing.assert_close(by_kiln(mine, w), expected)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _captured(by_kiln: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> None:
    given = x.clone()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            by_kiln(given, w)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = by_kiln(given, w)
    for seed in range(1, 4):
        given.copy_(x * seed)
        graph.replay()
        torch.testing.assert_close(out, _fn(x * seed, w))


def _captured_and_dropped() -> None:
    """A caller's CUDA graph goes on when the functions that it captured have gone: with their code,
    their constants and the weights that they have prepared."""
    w = torch.randn(64, 48, device="cuda")
    module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    module = module.cuda().half().requires_grad_(False)
    for name, fn, kind in (
        ("kernels", lambda x: _fn(x, w) + 1, torch.float32),
        ("a constant", lambda x: (x + torch.arange(64, device=x.device) / 64).relu(), torch.float32),
        ("weights", module, torch.float16),
        ("other weights", lambda x: F.linear(x, module[0].weight + 1) * 2, torch.float16),
    ):
        torch.cuda.synchronize()
        given = torch.randn(300, 64, device="cuda").to(kind)
        by_kiln = compiled(fn)
        with torch.no_grad():
            for _ in range(3):
                by_kiln(given)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = by_kiln(given)
            del by_kiln
            torch._dynamo.reset()
            gc.collect()
            # What takes the place of anything that was freed.
            other = compiled(lambda x: (x * 3 + 1).sin().sum(-1))
            for _ in range(3):
                other(given)
            filled = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(8)]
            for seed in range(1, 4):
                given.copy_(torch.randn(300, 64, device="cuda") * seed)
                graph.replay()
                expected = fn(given)
                torch.testing.assert_close(out, expected, msg=lambda m, name=name: f"{name}: {m}")
            del filled, graph
            torch.cuda.synchronize()
            other(given)


def _waits_for_nothing(by_kiln: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> None:
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    for _ in range(3):
        by_kiln(x, w)
    done.record()
    assert not done.query(), "a call waited for the GPU"
    torch.cuda.synchronize()


def _keeps_memory(by_kiln: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> None:
    by_kiln(x, w)
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(100):
        by_kiln(x, w)
    torch.cuda.synchronize()
    after = torch.cuda.memory_allocated()
    assert after == before, f"{after - before} bytes more after 100 calls"


def _index_error() -> None:
    """One that is out of range raises IndexError, with the run or with a later one, as a GPU's does;
    nothing is read outside of the table, and later calls are right again."""
    table = torch.randn(10, 4, device="cuda")
    # Two operators, for one alone may be a library's: torch's asserts on the device, for good.
    by_kiln = compiled(lambda t, i: t[i] * 2 + 1)
    right = torch.tensor([1, -3, 9], device="cuda")
    torch.testing.assert_close(by_kiln(table, right), table[right] * 2 + 1)
    raised = False
    try:
        by_kiln(table, torch.tensor([1, 10, 2], device="cuda"))
        torch.cuda.synchronize()
        by_kiln(table, right)
    except IndexError:
        raised = True
    assert raised, "no IndexError"
    torch.testing.assert_close(by_kiln(table, right), table[right] * 2 + 1)


def _updates() -> None:
    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[:, 2:5].copy_(x)
        cache.mul_(2)
        return cache.sum()

    ours, eager = torch.ones(3, 8, device="cuda"), torch.ones(3, 8, device="cuda")
    x = torch.randn(3, 3, device="cuda")
    by_kiln = compiled(step)
    for _ in range(3):
        torch.testing.assert_close(by_kiln(ours, x), step(eager, x))
        torch.testing.assert_close(ours, eager)


def _replays() -> None:
    """mode="reduce-overhead": outputs are the caller's, buffers are updated, parameters may move."""
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    module = module.cuda().requires_grad_(False)
    by_kiln = compiled(module, mode="reduce-overhead")
    kept = []
    with torch.no_grad():
        for i in range(8):
            if i == 4:
                module[0].weight.data = torch.randn(64, 64, device="cuda")
            if i == 6:
                module[0].weight.mul_(2)
            x = torch.randn(5, 64, device="cuda")
            stream = torch.cuda.Stream() if i % 2 else torch.cuda.current_stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                kept.append((by_kiln(x), module(x), x))
            stream.synchronize()
        for ours, eager, _ in kept:
            torch.testing.assert_close(ours, eager)


def _replayed_updates() -> None:
    cache, eager = torch.zeros(3, 8, device="cuda"), torch.zeros(3, 8, device="cuda")

    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return cache * 2

    by_kiln = compiled(step, mode="reduce-overhead")
    for i in range(6):
        x = torch.full((3, 8), float(i), device="cuda")
        torch.testing.assert_close(by_kiln(cache, x), step(eager, x))
        torch.testing.assert_close(cache, eager)


def _replayed_index_error() -> None:
    table = torch.randn(10, 4, device="cuda")
    by_kiln = compiled(lambda t, i: t[i] * 2 + 1, mode="reduce-overhead")
    right = torch.tensor([1, -3, 9], device="cuda")
    for _ in range(4):
        torch.testing.assert_close(by_kiln(table, right), table[right] * 2 + 1)
    try:
        by_kiln(table, torch.tensor([1, 10, 2], device="cuda"))
        torch.cuda.synchronize()
        by_kiln(table, right)
    except IndexError:
        return
    raise AssertionError("no IndexError")


def _several_gpus() -> None:
    by_kiln = compiled(lambda x: F.gelu(x) + torch.arange(9, device=x.device))
    for i in (*range(torch.cuda.device_count()), 0):
        x = torch.randn(4, 9, device=f"cuda:{i}")
        got = by_kiln(x)
        assert got.device == x.device
        torch.testing.assert_close(got, F.gelu(x) + torch.arange(9, device=x.device))


def _interactions(x: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.tril_indices(x.shape[1], x.shape[1], -1)
    return (x @ x.mT)[:, rows, columns].exp()


def _there_and_back(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x.exp().sum().cpu()
    return x * (total + 1).to(x.device), total.sqrt()


def _counted(x: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count.add_(1)
    return x * count, x.exp()


def _noisy(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.exp() + torch.rand(x.shape).to(x.device), torch.randn(3)


MIXTURES: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "copied in": (
        lambda x, y: (x.cuda() * 2 + y, y.exp()),
        lambda: [torch.randn(5), torch.randn(5, device="cuda")],
    ),
    "indices": (
        lambda x, i: x.exp()[i] + x.index_put((i,), x[i] * 3, accumulate=True)[i],
        lambda: [torch.randn(9, 4, device="cuda"), torch.randperm(9)],
    ),
    "made and kept": (_interactions, lambda: [torch.randn(3, 5, 4, device="cuda") / 4]),
    "copied out": (
        lambda x: (x.exp(), x.cpu(), x.sin().sum(0).to("cpu") + 1, torch.ones(3)),
        lambda: [torch.randn(9, 4, device="cuda")],
    ),
    "there and back": (_there_and_back, lambda: [torch.randn(9, device="cuda")]),
    "an update": (_counted, lambda: [torch.randn(9, device="cuda"), torch.zeros(())]),
    "random numbers": (_noisy, lambda: [torch.randn(9, device="cuda")]),
}


def _mixture(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    """Calls with and without gradients as eager's, with nothing run eager."""

    def step(call: Callable[..., Any], with_gradients: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        given = [x.clone() for x in inputs]
        for x in given[:1] if fn is _counted else given:
            x.requires_grad_(with_gradients and x.is_floating_point())
        with torch.set_grad_enabled(with_gradients):
            results = tree_leaves(call(*given))
        if with_gradients:
            sum(r.cuda().square().sum() for r in results if r.requires_grad).backward()
        return [*results, *given, *(x.grad for x in given if x.grad is not None)]

    by_kiln = compiled(fn)
    for with_gradients in (True, False, True):
        found, expected = step(by_kiln, with_gradients), step(fn, with_gradients)
        for a, e in zip(found, expected, strict=True):
            assert a.device == e.device
            torch.testing.assert_close(a, e, atol=1e-5, rtol=1e-5)


def _kept() -> None:
    """What a second process finds in torch's cache runs as what was captured: a training step, and an
    inference graph by replays. Each capture counts once."""
    import kiln_torch
    from kiln_torch.backend import torch_caches

    if torch_caches() is None:
        print(f"torch {torch.__version__}: no graphs are kept in its caches")
        return
    module = Transformer(100, 64, 2, 4).cuda()
    tokens = torch.randint(0, 100, (2, 16), device="cuda")
    for options in ({}, {"mode": "reduce-overhead"}):
        for again in (False, True):
            kiln_torch.reset()
            by_kiln = compiled(module, **options)
            module.zero_grad()
            by_kiln(tokens).square().mean().backward()
            ours = [p.grad.clone() for p in module.parameters()]
            module.zero_grad()
            module(tokens).square().mean().backward()
            for a, p in zip(ours, module.parameters(), strict=True):
                torch.testing.assert_close(a, p.grad, atol=1e-4, rtol=1e-3)
            with torch.no_grad():
                for _ in range(5):
                    torch.testing.assert_close(by_kiln(tokens), module(tokens), atol=1e-4, rtol=1e-4)
            captured = len(kiln_torch.stats()["capture_ms"])
            assert captured == (0 if again else 3), f"{captured} graphs captured"


def running(run: Results) -> None:
    x, w = torch.randn(300, 64, device="cuda"), torch.randn(64, 48, device="cuda")
    by_kiln = compiled(_fn)
    torch.testing.assert_close(by_kiln(x, w), _fn(x, w))
    for name, part in {
        "streams": _on_streams,
        "threads": _in_threads,
        "capture": _captured,
        "waits for nothing": _waits_for_nothing,
        "keeps no memory": _keeps_memory,
    }.items():
        with run.case(f"running {name}"):
            part(by_kiln, x, w)
    for name, alone in {
        "updates of inputs": _updates,
        "index out of range": _index_error,
        "capture, then the function goes": _captured_and_dropped,
        "replays": _replays,
        "replays that update inputs": _replayed_updates,
        "replays with an index out of range": _replayed_index_error,
        "several GPUs": _several_gpus,
        "kept in torch's cache": _kept,
    }.items():
        with run.case(f"running {name}"):
            alone()
    for name, (fn, inputs) in MIXTURES.items():
        with run.case(f"running CPU and GPU mixed: {name}"):
            _mixture(fn, inputs())
