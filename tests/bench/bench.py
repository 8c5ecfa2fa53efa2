"""Kiln against eager and TorchInductor, side by side in one run; see README.md for the command.

Prints one table a part. Every part starts its own kilnd with an empty data folder; processes that
must be fresh are fresh. No figure gates anything.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402
from decode import CACHE_LENGTH, DECODERS  # noqa: E402
from models import MODELS  # noqa: E402

PARTS = ("compile", "layers", "fetch", "warm", "run", "prepared", "train", "attention", "decode", "optimizer",
         "kernels", "joins", "overhead")

# What makes each of them leave AVX-512 alone.
AVX2_ONLY = {
    "KILN_ARCH": "x86-64-v3",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


def cpu_name() -> str:
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = next((line for line in text.splitlines() if line.startswith("model name")), "")
    widths = [w for w in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if f" {w}" in text]
    return f"{name.partition(':')[2].strip()}, {os.cpu_count()} cores, {' '.join(widths)}"


def median_ms(call, seconds: float = 3.0, least: int = 10) -> float:
    """Median of repeated calls, after three to warm up."""
    for _ in range(3):
        call()
    times = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
        if len(times) >= 2000:
            break
    return statistics.median(times) * 1e3


def table(title: str, header: list[str], rows: list[list[object]]) -> None:
    print(f"\n{title}\n")
    cells = [header] + [
        [f"{c:.3g}" if isinstance(c, float) else str(c) for c in row] for row in rows
    ]
    print("| " + " | ".join(cells[0]) + " |")
    print("|" + " --- |" * len(header))
    for row in cells[1:]:
        print("| " + " | ".join(row) + " |")
    sys.stdout.flush()


def child(part: str, name: str, env: dict[str, str], *more: str) -> dict[str, object]:
    """Runs one measurement in a fresh process and returns what it printed."""
    command = [sys.executable, str(HERE / "bench_child.py"), part, name, *more]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{part} {name} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def fresh_compile(side: str, name: str, env: dict[str, str]) -> dict[str, object]:
    """child(), of `kiln` or `inductor`, which finds nothing in torch's caches of compiled graphs."""
    with tempfile.TemporaryDirectory() as cache:
        return child(f"{side}_compile", name, {**env, "TORCHINDUCTOR_CACHE_DIR": cache})


def forget_artifacts(env: dict[str, str]) -> None:
    """Leaves the server its kernels only."""
    from conftest import BUILD

    command = [str(BUILD / "bin" / "kiln"), "cache", "clear", "--kind", "artifact"]
    subprocess.run(command, env={**os.environ, **env}, check=True, capture_output=True)


class FreshServer:
    """A kilnd with an empty data folder."""

    def __init__(self, workers: int = 2) -> None:
        self._workers = workers

    def __enter__(self) -> dict[str, str]:
        from conftest import Server

        self._folder = tempfile.TemporaryDirectory()
        data = pathlib.Path(self._folder.name) / "data"
        self._server = Server(data, f"--workers={self._workers}", "--anonymous-role=admin")
        self.http = self._server.http
        return {"KILN_SERVER": self._server.address}

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._folder.cleanup()


def bench_compile(names: list[str]) -> None:
    rows = []
    for name in names:
        with FreshServer() as env:
            cold = fresh_compile("kiln", name, env)
            forget_artifacts(env)
            cached = fresh_compile("kiln", name, env)
        inductor = fresh_compile("inductor", name, {})
        rows.append([
            name,
            cold["backend_s"],
            cached["backend_s"],
            inductor["backend_s"],
            f"{inductor['backend_s'] / cold['backend_s']:.1f}x",
            f"{inductor['backend_s'] / cached['backend_s']:.1f}x",
            cold["kernels"],
        ])
    table(
        "Backend compile, seconds, 2 workers (Inductor: fx_codegen_and_compile, fresh cache)",
        ["model", "Kiln cold", "Kiln, kernels cached", "Inductor", "cold", "cached", "kernels"],
        rows,
    )


def bench_layers() -> None:
    with FreshServer() as env:
        first = fresh_compile("kiln", "bert-base", env)
        second = fresh_compile("kiln", "bert-base-one-wide-layer", env)
    table(
        "One layer's width changed, kernels cached",
        ["model", "kernels", "compiled", "from the cache", "backend s"],
        [
            [n, r["kernels"], r["kernels_compiled"], r["kernels_cached"], r["backend_s"]]
            for n, r in (("bert-base", first), ("bert-base, one wide layer", second))
        ],
    )


def bench_fetch(names: list[str]) -> None:
    rows = []
    for name in names:
        with FreshServer() as env:
            fresh_compile("kiln", name, env)
            again = [fresh_compile("kiln", name, env) for _ in range(3)]
        assert all(r["kernels_compiled"] == 0 for r in again)
        rows.append([
            name,
            statistics.median(r["fetch_ms"] for r in again),
            statistics.median(r["backend_s"] * 1e3 for r in again),
        ])
    table(
        "A second process, milliseconds",
        ["model", "fetch and load", "with capture and key"],
        rows,
    )


# Of those that `warm` measures, what is called.
WARM = {"bert-base": "bert-base", "gpt2": "gpt2,train"}


def bench_warm(names: list[str]) -> None:
    """A backend "eager" runs what Dynamo traced as it is: what remains without its calls is Dynamo's."""
    rows = []
    for title, name in WARM.items():
        if title not in names:
            continue
        for way in ("", ",precompile"):
            for backend in ("eager", "inductor", "kiln") if way == "" else ("inductor", "kiln"):
                with FreshServer() as env, tempfile.TemporaryDirectory() as cache:
                    # Python may keep this package's bytecode, as pip does when it installs it.
                    kept = {"TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONDONTWRITEBYTECODE": ""}
                    env = {**env, **kept}
                    first = child("first_call", name, env, backend + way)
                    again = [child("first_call", name, env, backend + way) for _ in range(3)]
                found = {t: statistics.median(r[t] for r in again) for t in ("s", "cpu_s", "later_s")}
                rows.append([
                    title,
                    way.removeprefix(",") or "Dynamo traces",
                    backend,
                    first["s"],
                    *found.values(),
                    found["s"] - found["later_s"],
                ])
    table(
        "First call of a process, seconds, imports of torch left out",
        ["model", "way", "backend", "first process", "a second one", "its main thread", "a later call",
         "the first without that"],
        rows,
    )


def beside_kiln(row: dict[str, float]) -> list[object]:
    """Milliseconds of eager, TorchInductor and Kiln, then how many times faster Kiln is."""
    kiln = row["kiln_ms"]
    times = [row["eager_ms"], row["inductor_ms"]]
    return [*times, kiln, *(f"{ms / kiln:.2f}x" for ms in times)]


def side_by_side(part: str, title: str, names: list[str], dtype: str) -> None:
    rows = []
    for name in names:
        with FreshServer() as env:
            row = child(part, name, env, dtype)
        rows.append([
            name,
            *beside_kiln(row),
        ])
    title += f", milliseconds, batch 1, {dtype}"
    table(title, ["model", "eager", "Inductor", "Kiln", "eager / Kiln", "Inductor / Kiln"], rows)


def bench_run(names: list[str], dtype: str) -> None:
    side_by_side("run", "Run time", names, dtype)


def multiply_add_peak() -> float:
    """Gflop/s of float32 of the threads that torch has, in the width at hand."""
    from conftest import BUILD

    width = "avx2" if "KILN_ARCH" in os.environ or " avx512f" not in cpu_name() else "avx512"
    command = [str(BUILD / "bin" / "multiply_add_peak"), str(torch.get_num_threads()), width]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def bench_prepared(names: list[str], dtype: str) -> None:
    products = {"1024x1024x1024": 2 * 1024**3, "128x3072x768": 2 * 128 * 3072 * 768}
    rows = []
    for name in [*names, *products]:
        with FreshServer() as env:
            row = child("prepared", name, env, dtype)
        rate, share = "", ""
        if name in products:
            rate = products[name] / row["on_ms"] / 1e6
            share = f"{100 * rate / multiply_add_peak():.0f} %"
        ratio = f"{row['off_ms'] / row['on_ms']:.2f}x"
        rows.append([name, row["eager_ms"], row["off_ms"], row["on_ms"], ratio, rate, share])
    header = ["model", "eager", "not prepared", "prepared", "gain", "Gflop/s, prepared",
              "of float32's multiply-add peak"]
    table(f"Weights prepared once, milliseconds, batch 1, {dtype}", header, rows)


def bench_train(names: list[str], dtype: str) -> None:
    side_by_side("train", "Forward and backward", names, dtype)


def bench_decode(dtype: str) -> None:
    rows = []
    for name in DECODERS:
        with FreshServer() as env:
            row = child("decode", name, env, dtype)
        rate = row["bytes"] / row["kiln_ms"] / 1e6
        rows.append([
            name,
            *beside_kiln(row),
            rate,
            f"{row['read']:.3g} ({100 * rate / row['read']:.0f} %)",
            f"{row['copy']:.3g} ({100 * rate / row['copy']:.0f} %)",
            f"{row['difference']:.1e}",
        ])
    table(
        f"One token, cache of {CACHE_LENGTH}, {dtype}, milliseconds; GB/s of weights read once, and of "
        "reading and of copying 1 GiB; the logits' largest difference from eager's, relative",
        ["model", "eager", "Inductor", "Kiln", "eager / Kiln", "Inductor / Kiln", "weights", "read",
         "copy", "difference"],
        rows,
    )


def bench_kernels() -> None:
    with FreshServer() as env:
        result = child("kernels", "all", env)
    titles = {
        "memory": "tensors used in turn, none of them in a cache",
        "reused": "the same tensors again and again, so partly from the last cache",
    }
    for which, title in titles.items():
        table(
            f"Memory-bound kernels over 16 MB of float32, GB/s (each byte counts once): {title}",
            ["kernel", "eager", "Inductor", "Kiln", "x.clone()", "Kiln / clone"],
            [
                [r["kernel"], r["eager"], r["inductor"], r["kiln"], r["copy"]]
                + [f"{100 * r['kiln'] / r['copy']:.0f} %"]
                for r in result[which]
            ],
        )


def rows_of(part: str, title: str, what: str, name: str = "all") -> None:
    with FreshServer() as env:
        rows = child(part, name, env)["rows"]
    table(
        title,
        [what, "eager", "Inductor", "Kiln", "eager / Kiln", "Inductor / Kiln"],
        [
            [r["what"], r["eager_ms"], r["inductor_ms"], r["kiln_ms"]]
            + [f"{r[f'{other}_ms'] / r['kiln_ms']:.2f}x" for other in ("eager", "inductor")]
            for r in rows
        ],
    )


def bench_attention(dtype: str) -> None:
    rows_of("attention", f"Attention, batch 1, 12 heads of 64, {dtype}, milliseconds", "what", dtype)


def bench_optimizer() -> None:
    rows_of("optimizer", "One step of 50 small parameters, milliseconds", "optimizer")


def bench_joins() -> None:
    rows_of("joins", "Joining and padding, milliseconds", "what")


def bench_overhead() -> None:
    with FreshServer() as env:
        result = child("overhead", "all", env)
    table(
        "One tiny kernel, microseconds a whole call through torch.compile; nothing: a backend whose "
        "graph returns the same tensor each time; the option: record_runtime_overhead",
        ["torch._dynamo.config", "eager", "nothing", "Inductor", "Kiln", "Kiln, the option on"],
        [
            [r[which] for which in ("what", "eager", "nothing", "inductor", "kiln", "recorded")]
            for r in result["wholes"]
        ],
    )
    table(
        "What is called in one, each with what it calls",
        ["what", "microseconds"],
        [[r["what"], r["us"]] for r in result["layers"]],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--models", default="bert-base,resnet-50", help=", ".join(MODELS))
    narrow = "as on a machine without AVX-512: Kiln, ATen, oneDNN and TorchInductor alike"
    parser.add_argument("--avx2", action="store_true", help=narrow)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"),
                        help="of what run, prepared, train, attention and decode measure")
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    names = args.models.split(",")
    if unknown or set(names) - set(MODELS):
        parser.error(f"unknown: {', '.join(sorted(unknown | set(names) - set(MODELS)))}")
    if args.avx2:
        os.environ.update(AVX2_ONLY)
    print(f"{time.strftime('%Y-%m-%d')}, {cpu_name()}, torch {torch.__version__}, "
          f"Python {platform.python_version()}{', AVX2 only' if args.avx2 else ''}")
    for part in args.parts:
        if part in ("run", "prepared", "train"):
            globals()[f"bench_{part}"](names, args.dtype)
        elif part in ("attention", "decode"):
            globals()[f"bench_{part}"](args.dtype)
        elif part in ("compile", "fetch", "warm"):
            globals()[f"bench_{part}"](names)
        else:
            globals()[f"bench_{part}"]()


if __name__ == "__main__":
    main()
