"""Integer division by zero raises, as eager's does; other divisions are eager's."""

import pytest
import torch

import kiln_torch

DIVISIONS = {
    "floor": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "truncated": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "fmod": torch.fmod,
    "of a number": lambda a, b: (7 % b) + a,
    "in place": lambda a, b: a.clone().floor_divide_(b) + b,
}
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_zero_among_integer_divisors_raises(name, dynamic):
    fn = DIVISIONS[name]
    for dtype in INTEGERS:
        torch._dynamo.reset()
        compiled = torch.compile(fn, backend="kiln", dynamic=dynamic)
        a = torch.randint(0, 100, (37,)).to(dtype)
        b = torch.randint(1, 9, (37,)).to(dtype)
        for zero_at in (None, 0, 36, None):
            divisor = b.clone()
            if zero_at is None:
                assert torch.equal(compiled(a, divisor), fn(a, divisor))
                continue
            divisor[zero_at] = 0
            for call in (fn, compiled):
                with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                    call(a, divisor)
    assert kiln_torch.stats()["fallbacks"] == []


def test_divisions_of_floats_by_zero_do_not():
    def fn(a, b):
        rounded = [torch.div(a, b, rounding_mode=mode) for mode in (None, "floor", "trunc")]
        return *rounded, a % b, a.fmod(b), a.long() / b.long()

    a, b = torch.randn(9), torch.tensor([0.0, 1, 2] * 3)
    actual = torch.compile(fn, backend="kiln")(a, b)
    torch.testing.assert_close(actual, fn(a, b), equal_nan=True)
    stats = kiln_torch.stats()
    assert stats["fallbacks"] == [] and stats["library_ops"] == {}


def test_nothing_is_divided_by_zero_in_an_empty_tensor():
    compiled = torch.compile(lambda a, b: a // b, backend="kiln")
    assert compiled(torch.empty(0, 3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)).shape == (0, 3)
