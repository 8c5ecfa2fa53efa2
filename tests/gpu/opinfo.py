"""Parts of check.py that run torch's OpInfo samples of every operator that Kiln lowers natively.

Several processes share the GPU, so that a fault costs one case. Outcomes go to a file of the results'
folder as they come; another run takes up what had no time.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections import Counter

from measure import Results

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
import opinfo_run  # noqa: E402
from opinfo_gaps import gap  # noqa: E402

DTYPES = ("float32", "bfloat16", "float16", "int64", "bool")
WITHIN_S, TIMEOUT_S = 480, 45
# Each holds a CUDA context and an import of torch, about 3 GiB of memory.
MOST_PROCESSES = 14


def _part(run: Results, direction: str) -> None:
    options = argparse.Namespace(
        ops=".*", dtype=DTYPES, direction=direction, lowered=True, device="cuda", samples=2,
        timeout=TIMEOUT_S, within=WITHIN_S, jobs=min(MOST_PROCESSES, os.cpu_count() or 1),
    )  # fmt: skip
    cases = opinfo_run.select_cases(options)
    path = run.folder / f"opinfo_{direction}.jsonl"
    outcomes = opinfo_run.recorded(path)
    with path.open("a") as record:
        waiting = [case for case in cases if str(case) not in outcomes]
        opinfo_run.run_all(waiting, options, outcomes, record)
    print(f"{len(cases)} cases: {dict(Counter(o['status'] for o in outcomes.values()))}")
    with run.case(f"opinfo {direction}: time for all"):
        assert len(outcomes) == len(cases), f"{len(cases) - len(outcomes)} cases were not begun"
    for case in cases:
        outcome = outcomes.get(str(case), {"status": "not applicable"})
        if outcome["status"] == "not applicable":
            continue
        with run.case(f"opinfo {case}", quiet=True):
            listed = gap(case.op, case.dtype, case.direction)
            assert listed or outcome["status"] == "equal", f"{outcome['status']}: {outcome['why']}"


def forward(run: Results) -> None:
    _part(run, "forward")


def backward(run: Results) -> None:
    _part(run, "backward")
