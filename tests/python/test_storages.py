"""Places that as_strided takes of a storage are eager's, of whatever view it is asked for them."""

import pytest
import torch

import kiln_torch

# Arguments of [3, 3], by how they lie in memory.
LAYOUTS = {
    "all of it": lambda: torch.arange(9.0).view(3, 3),
    "columns": lambda: torch.arange(12.0).view(3, 4)[:, 1:],
    "rows": lambda: torch.arange(12.0).view(4, 3)[1:],
    "turned": lambda: torch.arange(16.0).view(4, 4)[1:, 1:].t(),
}


def in_place(x):
    x.as_strided((2,), (2,), x.storage_offset() + 1).add_(5)
    return x * 1


def of_a_result(x):
    y = x * 2
    y.as_strided((2,), (4,), 1).add_(5)
    return y


FUNCTIONS = {
    "its own beginning": lambda x: x.as_strided((2,), (1,)) + 1,
    "the storage's": lambda x: x.as_strided((2, 2), (2, 1), 5) + 1,
    "before the view's": lambda x: x.as_strided((2,), (3,), 0) * 3,
    "of a view": lambda x: x.t().as_strided((4,), (1,)) + 1,
    "between a view's elements": lambda x: (x * 2)[:, 1:].as_strided((4,), (1,)) * 3,
    "behind a view's": lambda x: (x + 1)[0].as_strided((3,), (2,), 4) * 3,
    "of a part": lambda x: (x + 1).split(1, 1)[1].as_strided((3,), (2,), 1) * 3,
    "of places": lambda x: (x + 1).as_strided((3,), (2,), 2).as_strided((2,), (3,), 1) * 3,
    "an output": lambda x: x.as_strided((2,), (4,)),
    "in place": in_place,
    "of a result": of_a_result,
}


@pytest.mark.parametrize(
    ("layout", "dynamic"), [*((layout, False) for layout in LAYOUTS), ("columns", True)]
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_places_are_eagers(name, layout, dynamic):
    torch._dynamo.reset()
    kiln_torch.reset()
    x, y = LAYOUTS[layout](), LAYOUTS[layout]()
    expected = FUNCTIONS[name](x)
    actual = torch.compile(FUNCTIONS[name], backend="kiln", dynamic=dynamic)(y)
    torch.testing.assert_close((actual, y), (expected, x), rtol=0, atol=0)
    fallbacks = [each["reason"] for each in kiln_torch.stats()["fallbacks"]]
    # Memory before a window that was handed in is no part of what a graph is given.
    assert fallbacks == [] or name == "before the view's" and layout != "all of it", fallbacks
