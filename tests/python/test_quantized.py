"""Products with weights of 8 and 4 bits, as torch's operators and as users write them."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from compare import assert_same

import kiln_torch
from kiln_torch.quantized import FEW_ROWS_ON_CUDA, QUANTIZED_ON_CUDA

aten = torch.ops.aten
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}
DTYPES = list(TOLERANCE)


def generator():
    return torch.Generator().manual_seed(0)


def operands(rows, columns, depth, dtype):
    """x, whole numbers of 8 bits, a scale for each of them."""
    g = generator()
    x = torch.randn(rows, depth, generator=g).to(dtype)
    weight = torch.randint(-128, 128, (columns, depth), generator=g, dtype=torch.int8)
    return x, weight, (torch.rand(columns, generator=g) * 0.01).to(dtype)


def check(fn, args, reference):
    compiled = torch.compile(fn, backend="kiln")
    with torch.no_grad():
        actual, expected = compiled(*args), fn(*args)
    assert_same(actual, expected, reference, TOLERANCE[args[0].dtype])
    stats = kiln_torch.stats()
    assert stats["fallbacks"] == [] and stats["steps"]["library"] == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_int8(rows, dtype):
    x, weight, scale = operands(rows, 96, 160, dtype)
    exact = x.double() @ weight.double().t() * scale.double()
    check(aten._weight_int8pack_mm, (x, weight, scale), exact)


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="another layout"
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "group"), [(1, 32), (3, 64), (9, 32)])
def test_int4(rows, group, dtype):
    depth, columns = 128, 192
    x, _, _ = operands(rows, columns, depth, dtype)
    q = torch.randint(0, 16, (columns, depth), generator=generator(), dtype=torch.int32)
    scales = (torch.rand(depth // group, columns, 2, generator=generator()) - 0.3).to(dtype)
    packed = aten._convert_weight_to_int4pack_for_cpu(q, 2)
    scale, zero = (t.double().repeat_interleave(group, 0).t() for t in scales.unbind(-1))
    exact = x.double() @ ((q - 8) * scale + zero).t()
    check(aten._weight_int4pack_mm_for_cpu, (x, packed, group, scales), exact)


def test_int4_of_a_number_of_rows_that_is_no_block_is_torchs():
    q = torch.randint(0, 16, (80, 64), generator=generator(), dtype=torch.int32)
    x, scales = torch.randn(1, 64), torch.rand(2, 80, 2)
    args = (x, aten._convert_weight_to_int4pack_for_cpu(q, 2), 32, scales)
    compiled = torch.compile(aten._weight_int4pack_mm_for_cpu, backend="kiln")
    assert_same(compiled(*args), aten._weight_int4pack_mm_for_cpu(*args))
    assert "aten._weight_int4pack_mm_for_cpu.default" in kiln_torch.stats()["library_ops"]


def packed_for_a_gpu(q, inner):
    """Whole numbers 0 to 15 [n, k] as `aten._convert_weight_to_int4pack` lays them out there."""
    eights, tiles = q.shape[0] // 8, q.shape[1] // (16 * inner)
    words = torch.zeros(eights, tiles, 32, inner // 2, dtype=torch.int64)
    for column, k in itertools.product(range(8), range(16 * inner)):
        of_word = k % 32
        shift = of_word // 8 * 4 + k % 2 * 16
        numbers = q.view(eights, 8, tiles, 16 * inner)[:, column, :, k].long()
        words[:, :, column * 4 + k % 8 // 2, k // 32] |= numbers << shift
    return torch.where(words < 2**31, words, words - 2**32).to(torch.int32)


@pytest.mark.parametrize(("inner", "group"), [(2, 32), (4, 256), (8, 64)])
def test_int4_of_many_rows_on_a_gpu_is_unpacked(inner, group):
    depth, columns, rows = 256, 48, FEW_ROWS_ON_CUDA + 1
    q = torch.randint(0, 16, (columns, depth), generator=generator(), dtype=torch.int32)
    x, packed = operands(rows, columns, depth, torch.bfloat16)[0], packed_for_a_gpu(q, inner)
    scales = (torch.rand(depth // group, columns, 2, generator=generator()) - 0.3).bfloat16()
    scale, zero = (t.double().repeat_interleave(group, 0).t() for t in scales.unbind(-1))
    exact = x.double() @ ((q - 8) * scale + zero).t()
    product = QUANTIZED_ON_CUDA[aten._weight_int4pack_mm.default]
    check(product, (x, packed, group, scales), exact)
    assert product(x[:FEW_ROWS_ON_CUDA], packed, group, scales) is NotImplemented


def by_column(x, weight, scale):
    return torch.nn.functional.linear(x, weight.to(x.dtype) * scale[:, None])


def after_the_product(x, weight, scale):
    return torch.nn.functional.linear(x, weight.to(x.dtype)) * scale


def with_zero_points(x, weight, scale):
    zero = weight[:, :1].to(torch.int16)
    return x @ ((weight - zero).to(x.dtype) * scale[:, None]).t()


def by_group(x, weight, scale):
    groups = weight.to(x.dtype).view(weight.shape[0], -1, 32)
    scales = scale[:, None] * torch.arange(1, groups.shape[1] + 1).to(x.dtype)
    return torch.nn.functional.linear(x, (groups * scales[:, :, None]).view(weight.shape))


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [(by_column, 1), (by_column, 3), (after_the_product, 3), (with_zero_points, 1), (by_group, 1)],
)
def test_patterns_make_no_weight_of_floats(pattern, rows, tmp_path):
    x, weight, scale = operands(rows, 96, 160, torch.float32)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.scale = torch.nn.Buffer(weight), torch.nn.Buffer(scale)

        def forward(self, x):
            return pattern(x, self.weight, self.scale)

    layer = Layer()
    compiled = torch.compile(layer, backend="kiln", options={"debug_dir": str(tmp_path)})
    with torch.no_grad():
        expected = pattern(x.double(), weight, scale.double())
        assert_same(compiled(x), layer(x), expected)
    (found,) = Path(tmp_path).glob("*/program.json")
    made = [
        int(b["size_bytes"]["value"])
        for b in json.loads(found.read_text())["program"]["buffers"]
        if b["kind"] not in ("KIND_INPUT", "KIND_OUTPUT", "KIND_CONSTANT")
    ]
    assert sum(made) < weight.numel()
