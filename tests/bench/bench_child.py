"""One measurement in a fresh process: bench_child.py PART NAME [DTYPE or HOW]; prints JSON on the last line."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import statistics
import sys
import time
import types

import torch
from bench import median_ms
from decode import decode
from models import MODELS
from torch._dynamo.utils import compilation_time_metrics


@contextlib.contextmanager
def recorded_compiles():
    """A list that gets each graph that is asked for, as JSON, with the program that answers it."""
    from kiln_torch import program

    asked = []
    client_of = program.client_of

    class Recorder:
        def __init__(self, client):
            self._client = client

        def compile(self, graph):
            asked.append((graph, self._client.compile(graph)))
            return asked[-1][1]

    program.client_of = lambda *args: Recorder(client_of(*args))
    try:
        yield asked
    finally:
        program.client_of = client_of


def compile_with_kiln(name: str) -> dict[str, object]:
    import kiln_torch
    from kiln_torch import backend

    spent = []
    compile_graph = backend._compile_to_keep

    def timed(*args, **kwargs):
        start = time.perf_counter()
        run = compile_graph(*args, **kwargs)
        spent.append(time.perf_counter() - start)
        return run

    backend._compile_to_keep = timed
    model, args = MODELS[name]()
    with torch.no_grad(), recorded_compiles() as asked:
        torch.compile(model, backend="kiln")(*args)
    stats = kiln_torch.stats()
    if stats["fallbacks"]:
        raise RuntimeError(f"fell back: {stats['fallbacks']}")
    infos = [loaded.info() for _, loaded in asked]
    return {
        "backend_s": sum(spent),
        "fetch_ms": sum(stats["fetch_ms"]),
        "kernels": sum(info["kernels"] for info in infos),
        "kernels_compiled": sum(info["kernels_compiled"] for info in infos),
        "kernels_cached": sum(info["kernels_cached"] for info in infos),
    }


def inductor_compile(name: str) -> dict[str, object]:
    model, args = MODELS[name]()
    with torch.no_grad():
        torch.compile(model)(*args)
    return {"backend_s": sum(compilation_time_metrics["fx_codegen_and_compile"])}


def alternately(calls) -> dict[str, object]:
    """Median milliseconds of each call; in turns, since the machine's speed drifts."""
    times = {name: [] for name in calls}
    for _ in range(3):
        for name, call in calls.items():
            times[name].append(median_ms(call, 1.5, 5))
    return {f"{name}_ms": statistics.median(found) for name, found in times.items()}


def compiled_forms(name: str, dtype: str):
    """The model, then as Kiln and as Inductor compile it when they are first called."""
    to = getattr(torch, dtype)
    model, args = MODELS[name]()
    model = model.to(to)
    args = tuple(a if a is None or not a.is_floating_point() else a.to(to) for a in args)
    return {
        "eager": model,
        "kiln": torch.compile(model, backend="kiln", options={"fallback": "raise"}),
        "inductor": torch.compile(MODELS[name]()[0].to(to)),
    }, args


def run(name: str, dtype: str) -> dict[str, object]:
    forms, args = compiled_forms(name, dtype)
    with torch.no_grad():
        return alternately({which: lambda form=form: form(*args) for which, form in forms.items()})


def prepared(name: str, dtype: str) -> dict[str, object]:
    """The same model with and without what is computed once of its parameters (prepare_memory)."""
    to = getattr(torch, dtype)
    forms = {}
    for which, options in (("on", {}), ("off", {"prepare_memory": 0})):
        if name in PRODUCTS:
            model, args = product(*PRODUCTS[name])
        else:
            model, args = MODELS[name]()
        model = model.to(to)
        forms[which] = torch.compile(
            model, backend="kiln", options={"fallback": "raise", **options}
        )
    forms["eager"] = model
    args = tuple(a if a is None or not a.is_floating_point() else a.to(to) for a in args)
    with torch.no_grad():
        return alternately({which: lambda form=form: form(*args) for which, form in forms.items()})


# Rows, lanes, depth.
PRODUCTS = {"1024x1024x1024": (1024, 1024, 1024), "128x3072x768": (128, 3072, 768)}


def product(m: int, n: int, k: int):
    return torch.nn.Linear(k, n, bias=False).eval(), (torch.randn(m, k),)


def train(name: str, dtype: str) -> dict[str, object]:
    """Forward and backward; gradients start from none, as after zero_grad()."""
    forms, args = compiled_forms(name, dtype)

    def step(form):
        form.train()
        form.zero_grad()
        output = form(*args)[0]
        output.square().mean().backward()

    return alternately({which: lambda form=form: step(form) for which, form in forms.items()})


def kernels(_: str) -> dict[str, object]:
    n = 2048
    w, b = torch.randn(n), torch.randn(n)
    f = torch.nn.functional
    cases = {
        "add + relu": (lambda x, y: f.relu(x + y), 3),
        "bias + gelu(erf)": (lambda x, y: f.gelu(x + b), 2),
        "gelu(tanh)": (lambda x, y: f.gelu(x, approximate="tanh"), 2),
        "softmax, rows": (lambda x, y: torch.softmax(x, -1), 2),
        "layernorm, rows": (lambda x, y: f.layer_norm(x, (n,), w, b), 2),
        "sum rows": (lambda x, y: x.sum(-1), 1),
        "sum columns": (lambda x, y: x.sum(0), 1),
        "transpose + add": (lambda x, y: x.t() + y, 3),
        "add + rmsnorm": (
            lambda x, y: (x + y) * torch.rsqrt((x + y).square().mean(-1, True) + 1e-6) * w,
            3,
        ),
    }
    # Of the sets, used in turn, each is out of the caches when its turn comes again.
    sets = [(torch.randn(n, n), torch.randn(n, n)) for _ in range(6)]
    tables = {"memory": [], "reused": []}
    with torch.no_grad():
        for name, (fn, tensors) in cases.items():
            torch._dynamo.reset()
            calls = {
                "eager": (fn, tensors),
                "kiln": (torch.compile(fn, backend="kiln", options={"fallback": "raise"}), tensors),
                "inductor": (torch.compile(fn), tensors),
                "copy": (lambda x, y: x.clone(), 2),
            }
            for table, chosen in (("memory", sets), ("reused", sets[:1])):
                row = gigabytes_per_second(calls, chosen, n * n * 4)
                tables[table].append({"kernel": name, **row})
    return tables


def gigabytes_per_second(calls, sets, tensor_bytes: int) -> dict[str, float]:
    """Of each call, from the median of its times; the calls take turns, so that what the machine
    does besides meets all of them. Results live until as many others were made as there are sets."""
    times = {name: [] for name in calls}
    results = collections.deque(maxlen=len(sets) - 1)
    turns = itertools.cycle(sets)
    for i in range(123):
        for name, (call, _) in calls.items():
            x, y = next(turns)
            start = time.perf_counter()
            result = call(x, y)
            spent = time.perf_counter() - start
            results.append(result)
            del result
            if i >= 3:  # after warming up
                times[name].append(spent)
    return {
        name: tensor_bytes * tensors / statistics.median(times[name]) / 1e9
        for name, (_, tensors) in calls.items()
    }


def optimizer(_: str) -> dict[str, object]:
    """A whole step, as torch.compile(optimizer.step) runs it; eager's with foreach."""
    shapes = [(64,), (192, 64), (192,), (64, 64), (64,), (64,), (256, 64), (256,), (64, 256), (64,)]
    rows = []
    for name, settings in (("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {})):

        def step_of():
            parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes * 5]
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            return getattr(torch.optim, name)(parameters, lr=1e-3, foreach=True, **settings).step

        torch._dynamo.reset()
        calls = {
            "eager": step_of(),
            "kiln": torch.compile(step_of(), backend="kiln", options={"fallback": "raise"}),
            "inductor": torch.compile(step_of()),
        }
        rows.append({"what": name, **alternately(calls)})
    return {"rows": rows}


def joins(_: str) -> dict[str, object]:
    f = torch.nn.functional
    parts = [torch.randn(128, 256) for _ in range(16)]
    columns = [torch.randn(2048, 50) for _ in range(5)]
    images = [torch.randn(4, 64, 56, 56) for _ in range(2)]
    halves = torch.randn(1, 12, 512, 64)
    cases = {
        "cat of 16, 128 x 256 each, rows": lambda: torch.cat(parts),
        "cat of 5, 2048 x 50 each, columns": lambda: torch.cat(columns, 1),
        "cat of 2, channels of 4 x 64 x 56 x 56": lambda: torch.cat(images, 1),
        "halves turned, 12 x 512 x 64": lambda: torch.cat((-halves[..., 32:], halves[..., :32]), -1),
        "pad, 4 x 64 x 56 x 56": lambda: f.pad(images[0], (3, 3, 2, 2)),
        "pad + relu, 2048 x 50": lambda: f.pad(columns[0], (0, 1)).relu(),
    }
    rows = []
    with torch.no_grad():
        for what, fn in cases.items():
            torch._dynamo.reset()
            calls = {
                "eager": fn,
                "kiln": torch.compile(fn, backend="kiln", options={"fallback": "raise"}),
                "inductor": torch.compile(fn),
            }
            rows.append({"what": what, **alternately(calls)})
    return {"rows": rows}


def attention(dtype: str) -> dict[str, object]:
    def make(length: int, is_causal: bool, train: bool):
        q, k, v = (
            torch.randn(1, length, 12, 64, dtype=getattr(torch, dtype), requires_grad=train)
            for _ in range(3)
        )
        grad = torch.randn(1, length, 768, dtype=q.dtype)

        def forward(q, k, v):
            heads = [t.transpose(1, 2) for t in (q, k, v)]
            out = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=is_causal)
            return out.transpose(1, 2).reshape(1, length, 768)

        def step(call):
            if train:
                return lambda: torch.autograd.grad(call(q, k, v), (q, k, v), grad)
            return lambda: call(q, k, v)

        return forward, step

    rows = []
    for length in (128, 512, 1024, 2048, 4096):
        for is_causal in (False, True):
            for train in (False, True):
                torch._dynamo.reset()
                forward, step = make(length, is_causal, train)
                calls = {
                    "eager": step(forward),
                    "kiln": step(torch.compile(forward, backend="kiln", dynamic=False,
                                               options={"fallback": "raise"})),
                    "inductor": step(torch.compile(forward, dynamic=False)),
                }  # fmt: skip
                what = f"{length} keys{', causal' * is_causal}{', forward and backward' * train}"
                with torch.set_grad_enabled(train):
                    rows.append({"what": what, **alternately(calls)})
    return {"rows": rows}


def overhead(_: str) -> dict[str, object]:
    from kiln_torch import graphs
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    programs = []
    runner = graphs.runner

    def keep(program, *args):
        programs.append(program)
        return runner(program, *args)

    graphs.runner = keep
    x = torch.randn(64)

    def fn(x):
        return x * 2 + 1

    def time_us(call) -> float:
        return median_ms(call, 1.0) * 1e3

    def whole(backend, **options) -> float:
        torch._dynamo.reset()
        compiled = torch.compile(fn, backend=backend, **options)
        compiled(x)
        return time_us(lambda: compiled(x))

    kept = (torch.randn(64),)
    wholes, layers = [], []
    kiln = {"backend": "kiln", "options": {"fallback": "raise"}}
    with torch.no_grad():
        eager = time_us(lambda: fn(x))
        for record in (True, False):
            with torch._dynamo.config.patch(record_runtime_overhead=record):
                wholes.append({
                    "what": f"record_runtime_overhead={record}",
                    "eager": eager,
                    "nothing": whole(lambda module, inputs: lambda x: kept),
                    "inductor": whole("inductor"),
                    "kiln": whole(**kiln),
                    "recorded": whole("kiln", options={"record_runtime_overhead": True}),
                })
        whole(**kiln)
        code = _debug_get_cache_entry_list(fn.__code__)[0].code
        graph = fn.__globals__[next(n for n in code.co_names if n.startswith("__compiled_fn"))]
        uncompiled = types.FunctionType(code, fn.__globals__)
        torchs = getattr(graph, "whole", graph)
        for what, call in (
            ("the program", lambda: programs[-1].run([x])),
            ("the graph's function, as Dynamo's code calls it", lambda: graph(x)),
            ("the same through AOTAutograd's wrappers", lambda: torchs(x)),
            ("Dynamo's code", lambda: uncompiled(x)),
        ):
            layers.append({"what": what, "us": time_us(call)})
    return {"wholes": wholes, "layers": layers}


def whole_model(model, *args):
    return model(*args)[0]


def first_call(name: str, how: str) -> dict[str, object]:
    """Seconds of a process' first call, imports of torch left out: BACKEND or BACKEND,precompile;
    where the model is in training mode, of a forward and a backward pass."""
    backend, _, precompile = how.partition(",")
    # torch's own, whoever compiles: Dynamo, AOTAutograd, and what torch's aot_autograd imports besides.
    import torch._dynamo
    import torch._functorch.aot_autograd
    import torch._inductor.debug  # noqa: F401

    name, _, train = name.partition(",")
    model, args = MODELS[name]()
    model.train(bool(train))
    options = {}
    if precompile:
        torch._dynamo.config.caching_precompile = True
        # torch cannot rebuild all guards on a transformers model in another process.
        options["guard_filter_fn"] = torch.compiler.keep_portable_guards_unsafe
    start, start_cpu = time.perf_counter(), time.thread_time()
    call = torch.compile(whole_model, backend=backend, options=options)
    def step() -> None:
        if train:
            model.zero_grad()
            call(model, *args).square().mean().backward()
        else:
            with torch.no_grad():
                call(model, *args)

    step()
    found = {"s": time.perf_counter() - start, "cpu_s": time.thread_time() - start_cpu}
    torch.compiler.save_cache_artifacts()
    found["later_s"] = median_ms(step, 1.0, 3) / 1e3
    return found


PARTS = {
    "first_call": first_call,
    "kiln_compile": compile_with_kiln,
    "inductor_compile": inductor_compile,
    "run": run,
    "prepared": prepared,
    "train": train,
    "kernels": kernels,
    "optimizer": optimizer,
    "attention": attention,
    "decode": decode,
    "joins": joins,
    "overhead": overhead,
}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](*sys.argv[2:])))
