"""torch's own OpInfo samples for every operator that the server lowers natively.

Each sample runs through a graph of that one operator, captured as torch.compile does, and is compared
with eager. A sample whose graph holds another operator as a library step still has to be right.
"""

import itertools
import warnings

import pytest
import torch
from compare import assert_same, double_reference
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

import kiln_torch
from opinfo_names import LOWERED, SAMPLES

warnings.filterwarnings("ignore")


def cases():
    for info in op_db:
        if info.name in LOWERED:
            for dtype in (getattr(torch, name) for name in SAMPLES):
                if dtype in info.supported_dtypes("cpu"):
                    name = f"{info.name}-{info.variant_test_name}-{str(dtype)[6:]}"
                    yield pytest.param(info, dtype, id=name)


@pytest.mark.parametrize(("info", "dtype"), cases())
def test_samples_equal_eager(info, dtype):
    count = SAMPLES[str(dtype).removeprefix("torch.")]
    samples = itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), count)
    ran = 0
    for sample in samples:

        def fn(*args, _kwargs=sample.kwargs):
            return info.op(*args, **_kwargs)

        args = (sample.input, *sample.args)
        expected = fn(*tree_map(clone, args))
        try:
            reference = double_reference(fn, args) if dtype.is_floating_point else None
        except (RuntimeError, TypeError):
            reference = None
        torch._dynamo.reset()
        with torch.no_grad():
            actual = torch.compile(fn, backend="kiln", dynamic=False)(*tree_map(clone, args))
        assert_same(actual, expected, reference)
        ran += 1
    assert ran > 0
    assert kiln_torch.stats()["fallbacks"] == []


def clone(value):
    return value.clone() if isinstance(value, torch.Tensor) else value
