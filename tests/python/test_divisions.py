"""An integer division by zero raises what eager raises, with the operator that divided; other
divisions are eager's."""

import inspect
import os
import random
import subprocess
import sys

import pytest
import torch

import kiln_torch

DIVISIONS = {
    "floor": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "truncated": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floored": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "fmod": torch.fmod,
    "of a number": lambda a, b: (7 % b) + a,
    "chosen": lambda a, b: torch.where(b == 0, 0, a // b),
    "of a copy in place": lambda a, b: a.clone().floor_divide_(b) + b,
    "summed": lambda a, b: (a // b).sum(),
    "a part": lambda a, b: (a // b)[3:9] + 1,
    "padded": lambda a, b: torch.nn.functional.pad(a // b, (2, 2)) + 1,
    "looked up": lambda a, b: (a // b)[torch.arange(0, 9, 2)] + 1,
    "turned": lambda a, b: (a // b).flip(0) * 2,
    "shaped": lambda a, b: (a // b).view(-1, 37).t() - 1,
    "of a float product": lambda a, b: (a // b).float()[None] @ torch.ones(37, 3),
    "parts of one": lambda a, b: (a // b)[1:] - (a // b)[:-1],
}
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def compiled(fn, **options):
    torch._dynamo.reset()
    return torch.compile(fn, backend="kiln", options={"fallback": "raise"}, **options)


def raises(call, *args):
    with pytest.raises(RuntimeError, match="ZeroDivisionError") as raised:
        call(*args)
    return str(raised.value)


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_zero_among_integer_divisors_raises(name, dynamic):
    fn = DIVISIONS[name]
    for dtype in INTEGERS:
        call = compiled(fn, dynamic=dynamic)
        a = torch.randint(0, 100, (37,)).to(dtype)
        b = torch.randint(1, 9, (37,)).to(dtype)
        for zero_at in (None, 0, 36, None):
            divisor = b.clone()
            if zero_at is None:
                assert torch.equal(call(a, divisor), fn(a, divisor))
                continue
            divisor[zero_at] = 0
            raises(fn, a, divisor)
            raises(call, a, divisor)
    assert kiln_torch.stats()["fallbacks"] == []


@pytest.mark.parametrize("sizes", [((), ()), ((5,), ()), ((), (5,)), ((3, 1), (1, 40)), ((70000,), (70000,))])
def test_operands_of_every_shape(sizes):
    for name in ("floor", "remainder", "fmod"):
        fn = DIVISIONS[name]
        call = compiled(fn)
        a, b = torch.full(sizes[0], -7), torch.full(sizes[1], 2)
        assert torch.equal(call(a, b), fn(a, b))
        b.view(-1)[-1] = 0
        raises(fn, a, b)
        raises(call, a, b)


@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_and_sizes(dynamic):
    def by_size(a):
        return a // a.shape[0] + a % (a.shape[0] - 4)

    call = compiled(by_size, dynamic=dynamic)
    for size in (3, 7):
        assert torch.equal(call(torch.arange(size)), by_size(torch.arange(size)))
    raises(by_size, torch.arange(4))
    raises(call, torch.arange(4))

    for fn in (lambda a: a // 0, lambda a: a % 0, lambda a: torch.fmod(a, 0)):
        raises(fn, torch.arange(5))
        raises(compiled(fn, dynamic=dynamic), torch.arange(5))
    byte = torch.arange(5, dtype=torch.uint8)
    raises(lambda a: a // 256, byte)  # 0 as a number of 8 bits
    raises(compiled(lambda a: a // 256), byte)

    def by_number(a, n):
        return a // n

    call = compiled(by_number, dynamic=dynamic)
    for n in (3, 5, -2):
        assert torch.equal(call(torch.arange(5), n), by_number(torch.arange(5), n))
    raises(by_number, torch.arange(5), 0)
    raises(call, torch.arange(5), 0)


def test_what_is_divided_in_place_stays_where_the_run_fails():
    def step(a, b):
        a //= b
        return a + 1

    call = compiled(step)
    a, b = torch.arange(40) * 9, torch.full((40,), 4)
    expected = a.clone()
    assert torch.equal(call(a, b), step(expected, b)) and torch.equal(a, expected)
    b[17] = 0
    raises(call, a, b)
    assert torch.equal(a, expected)

    many = compiled(lambda parts, b: torch._foreach_add([p // b for p in parts], 1))
    parts = [torch.arange(40), torch.arange(40) - 20]
    raises(many, parts, b)
    b[17] = -3
    for actual, part in zip(many(parts, b), parts, strict=True):
        assert torch.equal(actual, part // b + 1)


def test_the_error_names_the_operator_and_its_line():
    def fn(a, b):
        doubled = a * 2
        return doubled % b + 1  # the line at fault

    lines, first = inspect.getsourcelines(fn)
    line = first + next(n for n, text in enumerate(lines) if "at fault" in text)
    text = raises(compiled(fn), torch.arange(5), torch.arange(5))
    assert "aten.remainder" in text and f"test_divisions.py:{line} in fn: ZeroDivisionError" in text


def test_what_nobody_uses_is_not_divided():
    def fn(a, b):
        a // b
        return a + 1

    a = torch.arange(5)
    assert torch.equal(compiled(fn)(a, torch.zeros_like(a)), a + 1)


def test_divisions_of_floats_by_zero_do_not_raise():
    def fn(a, b):
        rounded = [torch.div(a, b, rounding_mode=mode) for mode in (None, "floor", "trunc")]
        return *rounded, a % b, a.fmod(b), a.long() / b.long()

    a, b = torch.randn(9), torch.tensor([0.0, 1, 2] * 3)
    torch.testing.assert_close(compiled(fn)(a, b), fn(a, b), equal_nan=True)
    stats = kiln_torch.stats()
    assert stats["fallbacks"] == [] and stats["library_ops"] == {}


def test_nothing_is_divided_by_zero_in_an_empty_tensor():
    call = compiled(lambda a, b: a // b)
    assert call(torch.empty(0, 3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)).shape == (0, 3)


def numbers(dtype):
    """Powers of two and their neighbours, and numbers of random length."""
    info = torch.iinfo(dtype)
    edges = {sign * (1 << bit) + near for bit in range(0, 64, 3) for sign in (-1, 1) for near in (-1, 0, 1)}
    edges |= {info.min, info.min + 1, info.max, info.max - 1, 1 << 53, (1 << 53) + 1, -(1 << 53) - 1}
    generator = random.Random(5)
    edges |= {generator.getrandbits(63) >> generator.randrange(63) for _ in range(60)}
    return sorted(n for n in edges if info.min <= n <= info.max)


def truncated(a, b):
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def wrapped(values, dtype):
    """The least number by -1 wraps."""
    info = torch.iinfo(dtype)
    span = info.max - info.min + 1
    return torch.tensor([(v - info.min) % span + info.min for v in values], dtype=dtype)


@pytest.mark.parametrize("arch", ["", "x86-64-v3"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_quotients_and_remainders_are_pythons(dtype, arch):
    pairs = [(a, b) for a in numbers(dtype) for b in numbers(dtype) if b != 0]
    a, b = (torch.tensor(side, dtype=dtype) for side in zip(*pairs, strict=True))

    def fn(a, b):
        truncating = torch.div(a, b, rounding_mode="trunc")
        return a // b, a % b, truncating, torch.fmod(a, b)

    options = {"fallback": "raise", "arch": arch}
    actual = torch.compile(fn, backend="kiln", options=options)(a, b)
    expected = (
        [x // y for x, y in pairs],
        [x % y for x, y in pairs],
        [truncated(x, y) for x, y in pairs],
        [x - truncated(x, y) * y for x, y in pairs],
    )
    for mine, right in zip(actual, expected, strict=True):
        assert torch.equal(mine, wrapped(right, dtype))
    for number in {7, -3, 1, 64, torch.iinfo(dtype).max, torch.iinfo(dtype).min} & set(numbers(dtype)) - {0}:
        def by_number(a, number=number):
            return a // number, a % number

        torch._dynamo.reset()
        floored, rest = torch.compile(by_number, backend="kiln", options=options)(a)
        assert torch.equal(floored, wrapped([x // number for x, _ in pairs], dtype))
        assert torch.equal(rest, wrapped([x % number for x, _ in pairs], dtype))


# In a process of its own: eager's own division ends it.
LEAST = """
import torch
SIZES = (1, 7, 64, 131)
def divide(operands):
    return [
        (a // b, torch.div(a, b, rounding_mode="trunc"), a % b, torch.fmod(a, b), a // -1, a % -1)
        for a, b in operands
    ]
for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
    least = torch.iinfo(dtype).min
    expected = (least, least, 0, 0, least, 0)
    operands = [(torch.full((n,), least, dtype=dtype), torch.full((n,), -1, dtype=dtype)) for n in SIZES]
    torch._dynamo.reset()
    call = torch.compile(divide, backend="kiln", options={"fallback": "raise", "arch": ARCH})
    for (a, _), results in zip(operands, call(operands), strict=True):
        for result, value in zip(results, expected, strict=True):
            assert torch.equal(result, torch.full_like(a, value)), (dtype, len(a), result)
print("wrapped")
"""


@pytest.mark.parametrize("arch", ["", "x86-64-v3"])
def test_the_least_integer_by_minus_one_wraps(arch):
    script = LEAST.replace("ARCH", repr(arch))
    run = subprocess.run(
        [sys.executable, "-c", script], env=os.environ, capture_output=True, text=True, check=False
    )
    assert "wrapped" in run.stdout, (run.returncode, run.stderr[-2000:])
