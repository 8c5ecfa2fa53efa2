"""Kiln on a GPU against eager and float64, and its speed: python tests/gpu/check.py [PART...]

KILN_BUILD names a build folder or an unpacked portable pack; a kilnd of it is started and
KILN_SERVER set. Without parts all but the bench run; `bench` is all of its parts. One line a case,
then a summary; exit status 1 where a case failed, 77 without a CUDA device. Each part takes less
than nine minutes; RESULTS.md has what they printed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
NO_DEVICE = 77
# part: (module, function)
PARTS = {
    "pointwise": ("functions", "pointwise"),
    "reductions": ("functions", "reductions"),
    "rows": ("functions", "rows"),
    "operators": ("functions", "operators"),
    "models": ("training", "models"),
    "training": ("training", "training"),
    "precision": ("training", "precision"),
    "random": ("training", "randomness"),
    "dynamic": ("running", "dynamic"),
    "running": ("running", "running"),
    "bench_kernels": ("bench", "kernels"),
    "bench_models": ("bench", "models"),
    "bench_training": ("bench", "training"),
    "bench_profile": ("profiles", "training"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parts = parser.parse_args().parts or [part for part in PARTS if not part.startswith("bench")]
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
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    from kilnd import BUILD, Server
    from measure import Results

    sys.path.insert(0, str(BUILD / "python"))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {BUILD}")
    run = Results()
    with tempfile.TemporaryDirectory(prefix="kiln-gpu-") as folder:
        server = Server(pathlib.Path(folder) / "data")
        os.environ["KILN_SERVER"] = server.address
        try:
            for part in parts:
                module, function = PARTS[part]
                torch.manual_seed(0)
                begin = time.monotonic()
                getattr(importlib.import_module(module), function)(run)
                print(f"part {part}: {time.monotonic() - begin:.0f} s", flush=True)
        finally:
            server.stop()
    return run.summary()


if __name__ == "__main__":
    sys.exit(main())
