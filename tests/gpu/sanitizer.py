"""The part of check.py that runs kernels of every kind under compute-sanitizer, which must find nothing.

The command `kiln run` runs them, so that no kernel but Kiln's is watched and each input and output has
an allocation of its own. Sizes are odd, and large enough that every way of sharing work is taken.
"""

from __future__ import annotations

import functools
import pathlib
import queue
import re
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from conformance import Case, finished, integers, randn, run_commands
from measure import Results

F = torch.nn.functional
Tensors = tuple[torch.Tensor, ...]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Runs at a time; each takes ports of its own.
PROCESSES, FIRST_PORT, PORTS = 6, 49152, 16
CLEAN = re.compile(r"(ERROR|RACECHECK) SUMMARY: 0 ")
# Whose results the tensor memory accelerator stores, which initcheck does not see: it takes them for
# uninitialized when they are read. Part `attention` compares them in memory that was NaN.
UNSEEN = (
    *("attention", "attention_causal", "attention_masked"),
    *(f"{name} {kind}" for name in ("train_attention", "train_attention_causal") for kind in ("forward", "backward")),
)


def _cross_entropy(x: torch.Tensor) -> torch.Tensor:
    target = torch.arange(x.shape[0], device=x.device) % x.shape[1]
    return F.cross_entropy(x, target, label_smoothing=0.1)


def half(*sizes: int) -> torch.Tensor:
    return randn(*sizes, dtype=torch.bfloat16)


def _by_warps() -> list[Case]:
    """Products by mma.sync, for which the code has to be another architecture's than this GPU's."""
    return [
        Case("product_mma", lambda x, w, b: F.gelu(F.linear(x, w, b)),
             lambda: (half(130, 264), half(200, 264), half(200))),
        Case("product_mma_turned", lambda a, b: F.relu(a.t() @ b), lambda: (half(104, 136), half(104, 328))),
        Case("product_mma_ragged", lambda x, w, y: (x @ w.t() + y).float(),
             lambda: (half(300, 72), half(133, 72), half(300, 133))),
        Case("product_mma_of_lines", lambda x, w: F.silu(x[:, :101] @ w[:, :101].t()),
             lambda: (half(70, 104), half(72, 104))),
    ]  # fmt: skip


def _inference() -> list[Case]:
    return [
        Case("pointwise", lambda x, y: F.gelu(x) * y, lambda: (randn(1025, 1031), randn(1031))),
        Case("pointwise_bf16", lambda x, y: F.relu(x + y), lambda: (half(255, 4097), half(255, 4097))),
        Case("rows_of_a_warp", lambda x: x.softmax(-1), lambda: (randn(1001, 65),)),
        Case("sum_rows", lambda x: (x.sum(-1), x.argmax(-1)), lambda: (randn(257, 4097),)),
        Case("sum_rows_split", lambda x: x.sum(-1), lambda: (randn(3, 700001),)),
        Case("sum_all_split", lambda x: (x.sum(), x.amax()), lambda: (randn(1025, 1031),)),
        Case("sum_columns", lambda x: x.sum(0), lambda: (randn(4097, 255),)),
        Case("sum_columns_split", lambda x: x.sum(0) * 2, lambda: (randn(70001, 3),)),
        Case("sum_columns_bf16", lambda x: x.sum(0), lambda: (half(4099, 1024),)),
        Case("tiles", lambda x, y: x.t() + y, lambda: (randn(1025, 1031), randn(1031, 1025))),
        Case("tiles_bf16", lambda x: x.permute(0, 2, 1).contiguous() * 2, lambda: (half(3, 256, 130),)),
        Case("gather", lambda x, i: x.gather(1, i) + 1, lambda: (randn(65, 50), integers(65, 333))),
        Case("embedding", lambda w, i: F.embedding(i, w) * 2, lambda: (randn(50, 257), integers(7, 99))),
        Case("index", lambda x, i: x[:, i - 25], lambda: (randn(40, 50), integers(170))),
        Case("scatter_add", lambda x, i, v: x.scatter_add(1, i, v),
             lambda: (randn(5, 50), integers(5, 90), randn(5, 90))),
        Case("scan", lambda x: (x.cumsum(1), x.cumsum(0)), lambda: (randn(37, 145),)),
        Case("product", lambda x, w, b: F.gelu(F.linear(x, w, b)),
             lambda: (randn(70, 96), randn(130, 96), randn(130))),
        Case("product_bf16", lambda x, w: x @ w, lambda: (half(130, 70), half(70, 90))),
        Case("product_of_few_rows", lambda x, w, b: F.silu(F.linear(x, w, b)) + 1,
             lambda: (half(5, 1032), half(1000, 1032), half(1000))),
        Case("products_in_a_row", lambda x, w, v: F.linear(F.linear(x, w), v).relu(),
             lambda: (half(33, 512), half(776, 512), half(520, 776))),
        Case("product_of_int8", lambda x, w, s: F.linear(x, w.to(x.dtype)) * s,
             lambda: (half(9, 1040), (randn(1000, 1040) * 40).to(torch.int8), half(1000))),
        Case("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
             lambda: (half(2, 6, 300, 128), half(2, 3, 333, 128), half(2, 3, 333, 128))),
        Case("attention_causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
             lambda: (half(1, 3, 391, 64), half(1, 3, 391, 64), half(1, 3, 391, 64))),
        Case("attention_masked", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m > 0),
             lambda: (half(2, 2, 130, 256), half(2, 2, 71, 256), half(2, 2, 71, 256), half(2, 1, 130, 71))),
        Case("few_queries", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
             lambda: (half(2, 12, 1, 128), half(2, 3, 1030, 128), half(2, 3, 1030, 128))),
        Case("few_queries_masked", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m > 0),
             lambda: (half(3, 2, 9, 80), half(3, 2, 333, 80), half(3, 2, 333, 80), half(3, 1, 9, 333))),
        Case("convolution", lambda x, w: F.relu(F.conv2d(x, w, padding=1)),
             lambda: (randn(2, 5, 13, 15), randn(11, 5, 3, 3))),
    ]  # fmt: skip


def _training() -> list[Case]:
    def wanted(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return randn(*sizes, dtype=dtype).requires_grad_()

    def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, w.shape, w, b)

    def rows(make: Callable[..., torch.Tensor], *sizes: int) -> Callable[[], Tensors]:
        return lambda: (make(*sizes), make(sizes[-1]), make(sizes[-1]))

    half = functools.partial(wanted, dtype=torch.bfloat16)
    return [
        Case("train_layer_norm", norm, rows(wanted, 65, 511)),
        Case("train_layer_norm_bf16", norm, rows(half, 129, 4096)),
        Case("train_softmax_long", lambda x: x.softmax(-1), lambda: (wanted(2, 131072),)),
        Case("train_softmax_columns", lambda x: x.log_softmax(0), lambda: (wanted(255, 130),)),
        Case("train_cross_entropy", _cross_entropy, lambda: (wanted(64, 5025),)),
        Case("train_group_norm", lambda x: F.group_norm(x, 4), lambda: (wanted(3, 12, 33, 31),)),
        Case("train_attention", F.scaled_dot_product_attention,
             lambda: (half(2, 3, 300, 128), half(2, 3, 333, 128), half(2, 3, 333, 128))),
        Case("train_attention_causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
             lambda: (half(1, 3, 391, 64), half(1, 3, 391, 64), half(1, 3, 391, 64))),
        Case("train_pool", lambda x: F.avg_pool2d(x, 3, 2, 1), lambda: (wanted(2, 3, 17, 19),)),
    ]  # fmt: skip


def commands(folder: pathlib.Path) -> dict[str, list[str]]:
    """By name, a run of each graph."""
    found = {}
    for cases, train in ((_inference(), False), (_training(), True)):
        for case in cases:
            for i, command in enumerate(run_commands(case, folder, train)):
                found[f"{case.name} {('forward', 'backward')[i]}" if train else case.name] = command
    for case in _by_warps():
        found[case.name] = [*run_commands(case, folder)[0], "--arch", "sm_80"]
    return found


def sanitizer(run: Results) -> None:
    program = shutil.which("compute-sanitizer")
    assert program, "compute-sanitizer is not on the PATH"
    ports: queue.SimpleQueue[int] = queue.SimpleQueue()
    for i in range(PROCESSES):
        ports.put(FIRST_PORT + i * PORTS)

    def watched(tool: str, command: list[str]) -> str:
        port = ports.get()
        try:
            flags = ["--tool", tool, "--error-exitcode", "99", "--port", str(port)]
            if "--arch" in command:  # the driver refuses such a cubin and takes the PTX beside it
                flags += ["--report-api-errors", "no"]
            done = finished([program, *flags, *command])
        finally:
            ports.put(port)
        clean = done.returncode == 0 and CLEAN.search(done.stdout)
        return "" if clean else f"exit status {done.returncode}: {done.stdout}"

    with tempfile.TemporaryDirectory(prefix="kiln-gpu-") as folder:
        runs = commands(pathlib.Path(folder))
        with ThreadPoolExecutor(PROCESSES) as pool:
            alone = dict(zip(runs, pool.map(finished, runs.values()), strict=True))
            for name, done in alone.items():
                with run.case(f"sanitizer none {name}", quiet=True):
                    assert done.returncode == 0, done.stdout
            results = {
                f"sanitizer {tool} {name}": pool.submit(watched, tool, command)
                for tool in TOOLS
                for name, command in runs.items()
                if tool != "initcheck" or name not in UNSEEN
            }
        for name, result in results.items():
            with run.case(name):
                found = result.result()
                assert not found, found[-1500:]
