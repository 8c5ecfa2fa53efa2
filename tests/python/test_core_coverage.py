"""The table of core operators says what the server made of them; core_coverage.py prints all of it."""

import pytest
import torch
from core_coverage import LIBRARY, NEVER_A_STEP, classify, core_operators

X = torch.arange(8.0).view(2, 4)
CALLS = {
    "relu.default": ("native", (X,)),
    "fill.Scalar": ("decomposed", (X, 2.0)),
    "cumsum.default": ("native", (X, 1)),
    "rand.default": ("native", ([3],)),
    "topk.default": ("native", (X, 2)),
    "_fft_r2c.default": ("library", (X, [1], 0, True)),
    "atan2.out": ("never a step", ()),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_operators_kind_is_what_its_graph_became(name):
    kind, args = CALLS[name]
    assert classify(name, core_operators()[name], [(args, {})])[0] == kind


def test_reasons_are_of_core_operators():
    assert set(LIBRARY) | set(NEVER_A_STEP) <= set(core_operators())
    assert all((LIBRARY | NEVER_A_STEP).values())
