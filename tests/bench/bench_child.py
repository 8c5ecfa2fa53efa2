"""One measurement in a fresh process: bench_child.py PART NAME; prints JSON on the last line."""

from __future__ import annotations

import json
import sys
import time

import torch
from bench import median_ms
from models import MODELS
from torch._dynamo.utils import compilation_time_metrics


def compile_with_kiln(name: str) -> dict[str, object]:
    import kiln_torch
    from kiln_torch import backend

    spent = []
    programs = []
    compile_graph = backend._compile
    client_of = backend._client_of

    def timed(*args, **kwargs):
        start = time.perf_counter()
        run = compile_graph(*args, **kwargs)
        spent.append(time.perf_counter() - start)
        return run

    class Recorder:
        def __init__(self, client):
            self._client = client

        def compile(self, graph):
            programs.append(self._client.compile(graph))
            return programs[-1]

    backend._compile = timed
    backend._client_of = lambda settings: Recorder(client_of(settings))
    model, args = MODELS[name]()
    with torch.no_grad():
        torch.compile(model, backend="kiln")(*args)
    stats = kiln_torch.stats()
    if stats["fallbacks"]:
        raise RuntimeError(f"fell back: {stats['fallbacks']}")
    infos = [program.info() for program in programs]
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


def run(name: str) -> dict[str, object]:
    model, args = MODELS[name]()
    with torch.no_grad():
        kiln = torch.compile(model, backend="kiln", options={"fallback": "raise"})
        kiln(*args)
        torch._dynamo.reset()
        inductor = torch.compile(MODELS[name]()[0])
        times = {"eager": [], "kiln": [], "inductor": []}
        for _ in range(3):  # alternating, since the machine's speed drifts
            times["eager"].append(median_ms(lambda: model(*args), 1.5, 5))
            times["kiln"].append(median_ms(lambda: kiln(*args), 1.5, 5))
            times["inductor"].append(median_ms(lambda: inductor(*args), 1.5, 5))
    return {f"{k}_ms": sorted(v)[1] for k, v in times.items()}


def kernels(_: str) -> dict[str, object]:
    n = 2048
    x, y = torch.randn(n, n), torch.randn(n, n)
    w, b = torch.randn(n), torch.randn(n)
    f = torch.nn.functional
    megabytes = n * n * 4 / 1e6
    cases = {
        "add + relu": (lambda x, y, w, b: f.relu(x + y), 3),
        "bias + gelu(erf)": (lambda x, y, w, b: f.gelu(x + b), 2),
        "gelu(tanh)": (lambda x, y, w, b: f.gelu(x, approximate="tanh"), 2),
        "softmax, rows": (lambda x, y, w, b: torch.softmax(x, -1), 2),
        "layernorm, rows": (lambda x, y, w, b: f.layer_norm(x, (n,), w, b), 2),
        "sum rows": (lambda x, y, w, b: x.sum(-1), 1),
        "sum columns": (lambda x, y, w, b: x.sum(0), 1),
        "transpose + add": (lambda x, y, w, b: x.t() + y, 3),
        "add + rmsnorm": (
            lambda x, y, w, b: (x + y) * torch.rsqrt((x + y).square().mean(-1, True) + 1e-6) * w,
            3,
        ),
    }
    rows = []
    target = torch.empty_like(x)
    copy_ms = median_ms(lambda: target.copy_(x), 1.0)
    with torch.no_grad():
        for name, (fn, tensors) in cases.items():
            torch._dynamo.reset()
            versions = {
                "eager": fn,
                "kiln": torch.compile(fn, backend="kiln", options={"fallback": "raise"}),
                "inductor": torch.compile(fn),
            }
            row = {"kernel": name}
            for version, call in versions.items():
                row[version] = megabytes * tensors / median_ms(lambda c=call: c(x, y, w, b), 1.0)
            # Beside it, since what the caches hold and the machine's speed change as the run goes on.
            row["clone"] = 2 * megabytes / median_ms(lambda: x.clone(), 1.0)
            rows.append(row)
    copy_ms = min(copy_ms, median_ms(lambda: target.copy_(x), 1.0))
    return {"rows": rows, "copy": 2 * megabytes / copy_ms}


def overhead(_: str) -> dict[str, object]:
    from kiln_torch import backend

    captured = []
    runner = backend._runner

    def keep(*args):
        captured.append(runner(*args))
        return captured[-1]

    backend._runner = keep
    x = torch.randn(64)

    def fn(x):
        return x * 2 + 1

    with torch.no_grad():
        kiln = torch.compile(fn, backend="kiln", options={"fallback": "raise"})
        kiln(x)
        whole = {"what": "whole call through torch.compile"}
        whole["eager"] = median_ms(lambda: fn(x), 1.0) * 1e3
        whole["kiln"] = median_ms(lambda: kiln(x), 1.0) * 1e3
        alone = {"what": "the compiled graph alone", "eager": whole["eager"], "inductor": "-"}
        alone["kiln"] = median_ms(lambda: captured[0]([x]), 1.0) * 1e3
        torch._dynamo.reset()
        inductor = torch.compile(fn)
        whole["inductor"] = median_ms(lambda: inductor(x), 1.0) * 1e3
    return {"rows": [whole, alone]}


PARTS = {
    "kiln_compile": compile_with_kiln,
    "inductor_compile": inductor_compile,
    "run": run,
    "kernels": kernels,
    "overhead": overhead,
}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](sys.argv[2])))
