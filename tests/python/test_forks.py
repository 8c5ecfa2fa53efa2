"""Workers that are forked, as DataLoader's are, and call a compiled function."""

import os
import pathlib
import subprocess
import sys
import textwrap

HERE = pathlib.Path(__file__).parent

# A process of its own: what gRPC and torch have begun in this one would be the worker's, too.
SCRIPT = """
    import sys
    import warnings
    import torch
    from torch.utils.data import DataLoader, Dataset
    from compare import assert_same
    import kiln_torch

    def fn(x):
        return (x * 3).softmax(-1) + x.sum()

    torch.set_num_threads(1)
    compiled = torch.compile(fn, backend="kiln", dynamic=False)
    for size in map(int, sys.argv[1:]):
        compiled(torch.ones(size))

    class Samples(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            warnings.simplefilter("ignore")
            x = torch.arange(5.0 + i)
            y = compiled(x)
            reasons = {fallback["reason"] for fallback in kiln_torch.stats()["fallbacks"]}
            return x, y, reasons

    reasons = set()
    workers = DataLoader(
        Samples(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=100
    )
    for x, y, why in workers:
        assert_same(y, fn(x), fn(x.double()))
        reasons |= why
    print(*reasons)
"""


def workers_reasons(*sizes, tmp_path):
    """Why graphs fell back in workers, after calls with `sizes` elements before they were forked."""
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), *map(str, sizes)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), *filter(None, sys.path)]),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.strip()


def test_workers_compile_where_their_parent_has_not(tmp_path):
    assert workers_reasons(tmp_path=tmp_path) == ""


def test_workers_have_what_their_parent_compiled_and_run_all_else_eager(tmp_path):
    # They waited for threads that no fork has, for ten minutes.
    assert "this process was forked" in workers_reasons(5, 6, tmp_path=tmp_path)
