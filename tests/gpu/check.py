"""Kiln on a GPU against eager and float64, and its speed: python tests/gpu/check.py [--ptxas FILE] [--results DIR] [PART...]

KILN_BUILD names a build folder or an unpacked portable pack; a kilnd of it is started and
KILN_SERVER set. Without parts all but the bench run; `bench` is all of its parts. One line a case,
then what the server counted and a summary; exit status 1 where a case failed, 77 without a CUDA
device. Each part takes less than nine minutes; with --results one that did not finish goes on where it
was. RESULTS.md has what they printed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import re
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from kilnd import BUILD, Server  # noqa: E402

NO_DEVICE = 77
# part: (module, function)
PARTS = {
    "pointwise": ("functions", "pointwise"),
    "accuracy": ("functions", "accuracy"),
    "reductions": ("functions", "reductions"),
    "rows": ("functions", "rows"),
    "operators": ("functions", "operators"),
    "products": ("products", "products"),
    "products_mma": ("products", "products_mma"),
    "attention": ("attention", "attention"),
    "attention_mma": ("attention", "attention_mma"),
    "attention_training": ("attention", "training"),
    "decode": ("decode", "decode"),
    "int4": ("int4", "int4"),
    "queries": ("queries", "queries"),
    "models": ("training", "models"),
    "training": ("training", "training"),
    "precision": ("training", "precision"),
    "random": ("training", "randomness"),
    "dynamic": ("running", "dynamic"),
    "running": ("running", "running"),
    "opinfo_forward": ("opinfo", "forward"),
    "opinfo_backward": ("opinfo", "backward"),
    "conformance": ("conformance", "in_torch"),
    "conformance_run": ("conformance", "without_torch"),
    "sanitizer": ("sanitizer", "sanitizer"),
    "parallel": ("parallel", "parallel"),
    "bench_kernels": ("bench", "kernels"),
    "bench_products": ("products", "speed"),
    "bench_ragged": ("products", "ragged_speed"),
    "bench_products_mma": ("products", "speed_mma"),
    "bench_attention": ("attention", "speed"),
    "bench_attention_mma": ("attention", "mma_speed"),
    "bench_attention_training": ("attention", "training_speed"),
    "bench_decode": ("decode", "speed"),
    "bench_int4": ("int4", "speed"),
    "bench_queries": ("queries", "speed"),
    "bench_models": ("bench", "models"),
    "bench_training": ("bench", "training"),
    "profile_models": ("profiles", "models"),
    "profile_training": ("profiles", "training"),
}


# What of the server's metrics is shown: compiled kernels, cubins, compile times.
COUNTED = re.compile(r"kiln_(kernels_compiled|cubins|compile(_stage)?_duration_seconds_(sum|count))")


def _show_counts(server: Server) -> None:
    for line in server.metrics().splitlines():
        if COUNTED.match(line):
            print(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--ptxas", default="none", help="the server's option of that name")
    parser.add_argument(
        "--kilnd",
        action="append",
        default=[],
        metavar="FLAG",
        help="one more of the server's options, as in --kilnd=--assemble-ahead=off",
    )
    parser.add_argument("--results", type=pathlib.Path, help="a folder that outcomes are kept in")
    options = parser.parse_args()
    parts = options.parts or [part for part in PARTS if not part.startswith(("bench", "profile"))]
    if "bench" in parts:
        parts = [*parts, *(part for part in PARTS if part.startswith("bench_"))]
        parts.remove("bench")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")

    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: nothing to check")
        return NO_DEVICE
    from measure import Results

    package = str(BUILD / "python")
    sys.path.insert(0, package)
    os.environ["PYTHONPATH"] = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {BUILD}")
    torch.backends.cudnn.allow_tf32 = False  # what is measured turns it on
    with tempfile.TemporaryDirectory(prefix="kiln-gpu-") as folder:
        # What other runs have kept there is none of this one's.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(pathlib.Path(folder) / "torch")
        server = Server(pathlib.Path(folder) / "data", f"--ptxas={options.ptxas}", *options.kilnd)
        run = Results(options.results or pathlib.Path(folder), server)
        os.environ["KILN_SERVER"] = server.address
        try:
            for part in parts:
                module, function = PARTS[part]
                torch.manual_seed(0)
                begin = time.monotonic()
                getattr(importlib.import_module(module), function)(run)
                print(f"part {part}: {time.monotonic() - begin:.0f} s", flush=True)
            _show_counts(server)
        finally:
            server.stop()
    return run.summary()


if __name__ == "__main__":
    sys.exit(main())
