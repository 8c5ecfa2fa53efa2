"""The part of check.py that measures: kernels, calls, models and training steps, and compile times.

Eager, Inductor and Kiln run the same function in one process, in turns; a figure is the median.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import Results
from models import ResNet, Transformer, VisionTransformer

F = torch.nn.functional
CALLS, ROUNDS = 20, 7
SIDE = 8192
Run = Callable[[], Any]


def sides(mode: str = "") -> dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """What each side makes of a function, in that mode of torch.compile."""
    options = {"fallback": "raise", **({"mode": mode} if mode else {})}
    return {
        "eager": lambda fn: fn,
        "inductor": lambda fn: torch.compile(fn, dynamic=False, mode=mode or None),
        "kiln": lambda fn: torch.compile(fn, backend="kiln", dynamic=False, options=options),
    }


def _elapsed(run: Run) -> float:
    """Milliseconds on the GPU's clock from before the call to after its work."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def in_turns(runs: dict[str, Run], rounds: int = ROUNDS) -> dict[str, float]:
    for run in runs.values():
        run()
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(_elapsed(run))
    return {name: statistics.median(found) for name, found in times.items()}


def replayed(fn: Run, calls: int = CALLS) -> Run:
    """So many calls in one CUDA graph: the time of the kernels alone."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            fn()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            fn()
    return graph.replay


def _row(name: str, times: dict[str, float], per: int, unit: float, bytes_moved: int = 0) -> None:
    cells = [f"{found * unit / per:9.1f}" for found in times.values()]
    ratio = times["inductor"] / times["kiln"]
    rate = f"{bytes_moved * per / times['kiln'] / 1e6:7.0f} GB/s" if bytes_moved else ""
    print(f"{name:34} {' '.join(cells)}  {ratio:5.2f}x {rate}", flush=True)


def _head(title: str) -> None:
    print(f"\n{title}\n{'':34} {'eager':>9} {'inductor':>9} {'kiln':>9}  kiln's speed in inductor's")


def memory_bound(
    dtype: torch.dtype, device: str = "cuda"
) -> dict[str, tuple[Callable[..., Any], int, tuple[Any, ...]]]:
    """name: (function, tensors of SIDE x SIDE read and written, arguments)."""

    def big() -> torch.Tensor:
        return torch.randn(SIDE, SIDE, device=device).to(dtype)

    x, y = big(), big()
    row = torch.randn(SIDE, device=device).to(dtype)
    target = torch.randint(0, SIDE, (SIDE,), device=device)

    def add_rms_norm(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        z = (x + y).float()
        return (z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w

    return {
        "copy": (lambda x: x.clone(), 2, (x,)),
        "add + relu": (lambda x, y: F.relu(x + y), 3, (x, y)),
        "bias + gelu(tanh)": (lambda x, b: F.gelu(x + b, approximate="tanh"), 2, (x, row)),
        "gelu(erf) * y": (lambda x, y: F.gelu(x) * y, 3, (x, y)),
        "softmax, rows": (lambda x: x.softmax(-1), 2, (x,)),
        "layernorm, rows": (lambda x, w, b: F.layer_norm(x, (SIDE,), w, b), 2, (x, row, row)),
        "add + rmsnorm": (add_rms_norm, 3, (x, y, row)),
        "sum rows": (lambda x: x.sum(-1), 1, (x,)),
        "sum columns": (lambda x: x.sum(0), 1, (x,)),
        "sum all": (lambda x: x.sum(), 1, (x,)),
        "var_mean rows": (lambda x: torch.var_mean(x, -1), 1, (x,)),
        "transpose + add": (lambda x, y: x.t() + y, 3, (x, y)),
        "cross entropy": (lambda x, t: F.cross_entropy(x, t), 1, (x, target)),
    }


def _time_kernels(run: Results) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        kind = str(dtype).removeprefix("torch.")
        _head(f"Kernels, {SIDE} x {SIDE}, {kind}: us of GPU time, {CALLS} calls in one CUDA graph")
        moved = SIDE * SIDE * dtype.itemsize
        for name, (fn, tensors, args) in memory_bound(dtype).items():
            with run.case(f"bench {name} {kind}"):
                torch._dynamo.reset()
                runs = {
                    side: replayed(lambda f=how(fn), args=args: f(*args))
                    for side, how in sides().items()
                }
                _row(name, in_turns(runs), CALLS, 1e3, tensors * moved)


def _time_calls(run: Results) -> None:
    _head("One call of a small kernel, back to back: us")
    x = torch.randn(64, SIDE, device="cuda")
    for name, fn in {"softmax 64 x 8192": lambda x: x.softmax(-1), "add 64 x 8192": lambda x: x + 1}.items():
        with run.case(f"bench call {name}"):
            torch._dynamo.reset()

            def often(f: Callable[..., Any]) -> Run:
                return lambda: [f(x) for _ in range(1000)]

            runs = {side: often(how(fn)) for side, how in sides().items()}
            _row(name, in_turns(runs), 1000, 1e3)


def _tokens(*sizes: int) -> torch.Tensor:
    return torch.randint(0, 30000, sizes, device="cuda")


def _images(n: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(n, 3, 224, 224, device="cuda").to(dtype)


HALF = torch.bfloat16
# name: (module, argument, dtype); the sizes of the table that these are compared with
MODELS: dict[str, Callable[[], tuple[torch.nn.Module, torch.Tensor, torch.dtype]]] = {
    "resnet50 b32 fp32": lambda: (
        ResNet(64, (3, 4, 6, 3)), _images(32, torch.float32), torch.float32
    ),
    "bert-base b16 s128 bf16": lambda: (
        Transformer(30522, 768, 12, 12, causal=False), _tokens(16, 128), HALF
    ),
    "gpt2 b4 s512 bf16": lambda: (Transformer(50257, 768, 12, 12), _tokens(4, 512), HALF),
    "llama 8 layers h2048 b2 s1024 bf16": lambda: (
        Transformer(32000, 2048, 8, 16, gated=True), _tokens(2, 1024), HALF
    ),
    "vit-base b32 bf16": lambda: (
        VisionTransformer(224, 16, 768, 12, 12), _images(32, HALF), HALF
    ),
}


def _first_call(run: Run) -> float:
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def _inductor_seconds() -> float:
    """What Inductor's own compiles took so far, without Dynamo and AOTAutograd."""
    return sum(torch._dynamo.utils.compilation_time_metrics.get("compile_fx_inner", ()))


def _kiln_seconds(run: Results) -> float:
    """What compiles for GPUs took on the server so far."""
    pattern = r'kiln_compile_duration_seconds_sum{result="ok",target="ptx"} (\S+)'
    return float(re.search(pattern, run.server.metrics())[1])


def _time_models(run: Results, mode: str) -> None:
    _head(f"Inference, mode {mode or 'default'}: ms a call")
    for name, make in MODELS.items():
        with run.case(f"bench {name} {mode}".rstrip()), torch.no_grad():
            torch._dynamo.reset()
            module, x, dtype = make()
            module = module.cuda().to(dtype).eval()
            runs: dict[str, Run] = {}
            first = {}
            before = _inductor_seconds(), _kiln_seconds(run)
            for side, how in sides(mode).items():
                runs[side] = lambda f=how(module): f(x)
                first[side] = _first_call(runs[side])
                for _ in range(3):  # replays are recorded in a later call
                    runs[side]()
            _row(name, in_turns(runs, 15), 1, 1.0)
            print(
                f"{'':6}first call: inductor {first['inductor']:.1f} s "
                f"(compile_fx_inner {_inductor_seconds() - before[0]:.1f} s), "
                f"kiln {first['kiln']:.1f} s (server {_kiln_seconds(run) - before[1]:.2f} s)"
            )


TRAINED = (("gpt2 b4 s512 bf16", "AdamW"), ("resnet50 b32 fp32", "SGD"))


def training_step(name: str, kind: str, how: Any) -> Run:
    """One step of a model of MODELS by that optimizer: loss, backward and update by `how`."""
    module, x, dtype = MODELS[name]()
    module = module.cuda().to(dtype).train()
    options = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(torch.optim, kind)(module.parameters(), lr=1e-4, **options)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        logits = module(x)
        target = torch.arange(logits[..., 0].numel(), device="cuda") % logits.shape[-1]
        return F.cross_entropy(logits.flatten(0, -2).float(), target)

    loss, update = how(loss_of), how(optimizer.step)

    def step() -> None:
        loss(x).backward()
        update()
        optimizer.zero_grad()

    return step


def _time_training(run: Results) -> None:
    _head("Training step, loss, backward and optimizer compiled: ms")
    for name, kind in TRAINED:
        with run.case(f"bench training {name}"):
            torch._dynamo.reset()
            runs: dict[str, Run] = {}
            for side, how in sides().items():
                runs[side] = training_step(name, kind, how)
                runs[side]()
                runs[side]()
            _row(f"{name} {kind}", in_turns(runs), 1, 1.0)


def kernels(run: Results) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    _time_kernels(run)
    _time_calls(run)


def models(run: Results) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for mode in ("", "reduce-overhead"):
        _time_models(run, mode)


def training(run: Results) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    _time_training(run)
