"""Parts of check.py about attention of many queries: own kernels on sm_90a.

Which cases are kernels of ours and which are library steps the compiler decides by what was measured.
Parts attention_mma and bench_attention_mma are about attention by mma.sync of devices that are not
sm_90a: they compile for such a device, with no step left to a library, and run on this machine's.
"""

from __future__ import annotations

import math
from typing import Any

import kiln_torch
import torch
from bench import in_turns, replayed
from measure import Results, compiled
from products import ARCHITECTURES, by_warps
from torch.nn.attention import SDPBackend, sdpa_kernel

F = torch.nn.functional
HALVES = (torch.bfloat16, torch.float16)
# By norm, of the error to float64's result of the same 16-bit numbers; cuDNN's is 2.0e-3 to 2.3e-3.
MOST_ERROR = {torch.bfloat16: 4e-3, torch.float16: 6e-4}
Tensors = list[torch.Tensor]
# Of each function that was checked, whether it had no library step.
_OWN: list[bool] = []


def _heads(batch: int, heads: int, rows: int, width: int, dtype: torch.dtype, apart: bool) -> torch.Tensor:
    """Of unit variance; rows of all heads one after another, as models have them, or each head `apart`."""
    if apart:
        return torch.randn(batch, heads, rows, width, device="cuda").to(dtype)
    return torch.randn(batch, rows, heads, width, device="cuda").to(dtype).transpose(1, 2)


def _operands(sizes: tuple[int, ...], width: int, dtype: torch.dtype, apart: bool = False) -> Tensors:
    """Queries, keys and values of one of SIZES."""
    batch, heads, of_keys, queries, keys = sizes
    of_both = [_heads(batch, of_keys, keys, width, dtype, apart) for _ in "kv"]
    return [_heads(batch, heads, queries, width, dtype, apart), *of_both]


def _name(sizes: tuple[int, ...], width: int) -> str:
    batch, heads, of_keys, queries, keys = sizes
    return f"{batch} x {heads}/{of_keys} x {queries} x {keys} x {width}"


def _reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, is_causal: bool) -> torch.Tensor:
    """In float64; a row without keys is 0."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = q.double() @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda").tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1).nan_to_num(0) @ v


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None, is_causal: bool = False) -> Any:
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2).reshape(out.shape[0], out.shape[2], -1)


def _check(
    tensors: Tensors, is_causal: bool = False, dynamic: bool = False, own: bool | None = None, arch: str = ""
) -> None:
    """By Kiln against float64, into memory that was NaN; `own`: whether no library may take part, as for an
    `arch` that is said."""
    kiln_torch.reset()
    run = compiled(lambda *args: _attend(*args, is_causal=is_causal), dynamic=dynamic, **by_warps(arch))
    with torch.no_grad():
        mask = tensors[3] if len(tensors) > 3 else None
        wide = _reference(*tensors[:3], mask, is_causal)
        if mask is not None and mask.dtype == torch.bool:
            # To rows without keys torch adds the least number of the type in place of -inf for cuDNN, so
            # that they are not 0 in eager mode, either.
            eager = F.scaled_dot_product_attention(*tensors[:3], attn_mask=mask).double()
            wide = torch.where(mask.any(-1, keepdim=True), wide, eager)
        wide = wide.transpose(1, 2).flatten(2)
        run(*tensors)
        torch.cuda.synchronize()
        for _ in range(2):
            torch.full((wide.numel(),), float("nan"), device="cuda")  # what is allocated next has that
            found = run(*tensors)
            error = float((found.double() - wide).norm() / wide.norm())
            assert error <= MOST_ERROR[found.dtype], f"off by {error:.2e} of the norm"
    _OWN.append(kiln_torch.stats()["steps"]["library"] == 0)
    if arch or (own is not None and torch.cuda.get_device_capability() == (9, 0)):
        assert _OWN[-1] == (own or bool(arch)), kiln_torch.stats()["steps"]


# Batch, heads, heads of keys, queries, keys.
SIZES = ((2, 6, 2, 300, 417), (1, 4, 4, 64, 128), (3, 3, 1, 1000, 1000), (1, 3, 3, 700, 130), (2, 2, 2, 2048, 2048))
FEW = ((1, 8, 2, 1, 900), (2, 2, 2, 17, 1000))
MASKED = (2, 4, 4, 300, 418)


def _plain(run: Results, arch: str = "") -> None:
    for dtype in HALVES:
        for width in (64, 96, 128, 256):
            for apart in (False, True):
                for sizes in (*SIZES, *FEW) if arch else SIZES:
                    for is_causal in (False, True):
                        name = f"attention {_name(sizes, width)} {dtype} causal {is_causal} apart {apart} {arch}"
                        with run.case(name):
                            _check(_operands(sizes, width, dtype, apart), is_causal, arch=arch)


def _masked(run: Results, arch: str = "") -> None:
    for width in (64, 96, 128, 256) if arch else (64, 128):
        operands = _operands(MASKED, width, torch.bfloat16)
        for sizes in ((2, 1, 300, 418), (2, 1, 1, 418), (1, 4, 300, 418), (300, 418)):
            keeps = torch.rand(sizes, device="cuda") < 0.7
            if sizes[-2] > 1:
                keeps[..., 7:9, :] = False
            for kind in ("bool", "float32", "bfloat16"):
                with run.case(f"attention of {width} with a mask of {kind} {sizes} {arch}"):
                    mask = keeps
                    if kind != "bool":
                        added = torch.randn(sizes, device="cuda").masked_fill(~keeps, -math.inf)
                        mask = added.to(getattr(torch, kind))
                    _check([*operands, mask], arch=arch)
        with run.case(f"attention of {width} with the least number added to all keys {arch}"):
            least = torch.zeros(300, 418, device="cuda")
            least[5] = torch.finfo(torch.float32).min
            _check([*operands, least], arch=arch)
    if arch:
        with run.case(f"attention with a mask of rows of an odd number of elements {arch}"):
            operands = _operands((2, 4, 4, 300, 417), 64, torch.float16)
            _check([*operands, torch.rand(300, 417, device="cuda") < 0.7], arch=arch)


def _others(run: Results, arch: str = "") -> None:
    with run.case(f"attention of parts of one product {arch}"):
        qkv = torch.randn(2, 500, 3 * 8 * 64, device="cuda").bfloat16()
        parts = [x.view(2, 500, 8, 64).transpose(1, 2) for x in qkv.chunk(3, -1)]
        _check(parts, is_causal=True, own=True, arch=arch)
    with run.case(f"attention of sizes of run time {arch}"):
        for length in (1000, 1500):
            tensors = [_heads(2, 4, length, 64, torch.bfloat16, False) for _ in range(3)]
            _check(tensors, is_causal=True, dynamic=True, own=True, arch=arch)
    with run.case(f"attention of a NaN and of infinity {arch}"):
        q, k, v = (_heads(1, 2, 256, 64, torch.bfloat16, False) for _ in range(3))
        k[0, 1, 3, 5] = math.nan
        q[0, 0, 9, 0] = math.inf
        by_kiln = compiled(_attend, **by_warps(arch))(q, k, v).view(1, 256, 2, 64)
        assert by_kiln[0, :, 1].isnan().all() and by_kiln[0, 9, 0].isnan().all()
        assert by_kiln[0, :9, 0].isfinite().all()


def attention(run: Results) -> None:
    for part in (_plain, _masked, _others):
        part(run)
    print(f"{sum(_OWN)} of {len(_OWN)} functions ran on kernels of ours alone")


def attention_mma(run: Results) -> None:
    for arch in ARCHITECTURES:
        for part in (_plain, _masked, _others):
            part(run, arch)


def _check_gradients(
    tensors: Tensors,
    is_causal: bool,
    mask: torch.Tensor | None = None,
    dynamic: bool = False,
    own: bool | None = None,
) -> None:
    """Those of queries, keys and values by Kiln against float64, into memory that was NaN; `own`: whether no
    library may take part."""
    kiln_torch.reset()

    def gradients(fn: Any, args: Tensors) -> Tensors:
        args = [x.detach().requires_grad_() for x in args]
        out = fn(*args, mask=mask, is_causal=is_causal)
        return list(torch.autograd.grad(out, args, grad.to(out.dtype)))

    grad = torch.randn(
        tensors[0].shape[0], tensors[0].shape[2], tensors[0].shape[1] * tensors[0].shape[3], device="cuda"
    ).to(tensors[0].dtype)
    wide = gradients(
        lambda *args, **options: _reference(*args, **options).transpose(1, 2).flatten(2), [x.double() for x in tensors]
    )
    eager = gradients(_attend, tensors)
    run = compiled(_attend, dynamic=dynamic)
    for _ in range(3):
        torch.full((8 * max(x.numel() for x in tensors),), float("nan"), device="cuda")
        found = gradients(run, tensors)
        for name, ours, theirs, right in zip("qkv", found, eager, wide, strict=True):
            errors = [float((x.double() - right).norm() / right.norm()) for x in (ours, theirs)]
            limit = max(1.2 * errors[1], MOST_ERROR[ours.dtype])
            assert errors[0] <= limit, f"of {name} off by {errors[0]:.2e} of the norm, eager by {errors[1]:.2e}"
    _OWN.append(kiln_torch.stats()["steps"]["library"] == 0)
    if own is not None and torch.cuda.get_device_capability() == (9, 0):
        assert _OWN[-1] == own, kiln_torch.stats()["steps"]


def _parts(length: int, width: int) -> Tensors:
    """Queries, keys and values of one product, as GPT-2 has them."""
    qkv = torch.randn(2, length, 3 * 8 * width, device="cuda").bfloat16()
    return [x.view(2, length, 8, width).transpose(1, 2) for x in qkv.chunk(3, -1)]


def _check_parts() -> None:
    """Gradients of what attention is a part of: they go on to one product's."""
    qkv = torch.randn(2, 500, 3 * 8 * 64, device="cuda").bfloat16()
    grad = torch.randn(2, 500, 8 * 64, device="cuda").bfloat16()

    def gradient(attend: Any, wide: bool) -> torch.Tensor:
        x = (qkv.double() if wide else qkv).requires_grad_()
        return torch.autograd.grad(attend(x), x, grad.to(x.dtype))[0]

    def of_parts(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(2, 500, 8, 64).transpose(1, 2) for part in (x * 1.5).chunk(3, -1))
        if x.dtype == torch.double:
            return _reference(q, k, v, None, True).transpose(1, 2).flatten(2)
        return _attend(q, k, v, is_causal=True)

    wide, eager = gradient(of_parts, True), gradient(of_parts, False).double()
    found = gradient(compiled(of_parts), False).double()
    errors = [float((x - wide).norm() / wide.norm()) for x in (found, eager)]
    assert errors[0] <= max(1.2 * errors[1], MOST_ERROR[torch.bfloat16]), errors


def _check_deterministic() -> None:
    """In torch's deterministic mode, where it takes flash attention, equal inputs give equal bits."""
    tensors = [x.requires_grad_() for x in _operands((2, 4, 4, 1000, 1000), 64, torch.bfloat16)]
    grad = torch.randn(2, 1000, 4 * 64, device="cuda").bfloat16()
    kiln_torch.reset()
    torch.use_deterministic_algorithms(True)
    try:
        run = compiled(lambda *args: _attend(*args, is_causal=True))
        first, *others = [torch.autograd.grad(run(*tensors), tensors, grad) for _ in range(4)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert kiln_torch.stats()["steps"] == {"native": 0, "library": 2}, kiln_torch.stats()["steps"]
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert torch.equal(a, b)


def _check_replays() -> None:
    """In a CUDA graph sums begin at zero in every replay."""
    tensors = [x.requires_grad_() for x in _operands((2, 4, 2, 700, 700), 128, torch.bfloat16)]
    grad = torch.randn(2, 700, 4 * 128, device="cuda").bfloat16()
    run = compiled(lambda *args: _attend(*args, is_causal=True))

    def gradients() -> Tensors:
        return list(torch.autograd.grad(run(*tensors), tensors, grad))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        expected = [x.clone() for x in gradients()]
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients()
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        for a, b in zip(found, expected, strict=True):
            assert float((a - b).float().norm() / b.float().norm()) < 1e-3


def training(run: Results) -> None:
    before = len(_OWN)
    for dtype in HALVES:
        for width in (64, 128):
            for sizes in SIZES:
                for is_causal in (False, True):
                    with run.case(f"gradients of attention {_name(sizes, width)} {dtype} causal {is_causal}"):
                        _check_gradients(_operands(sizes, width, dtype), is_causal)
        for sizes in SIZES[:3]:
            with run.case(f"gradients of attention {_name(sizes, 64)} {dtype}, heads apart"):
                _check_gradients(_operands(sizes, 64, dtype, apart=True), True)
    with run.case("gradients of attention of parts of one product"):
        _check_gradients(_parts(500, 64), True, own=True)
        _check_gradients(_parts(500, 128), False, own=True)
    with run.case("gradients of attention that go on to one product's"):
        _check_parts()
    with run.case("gradients of attention of sizes of run time"):
        for length in (1000, 1500):
            _check_gradients(_operands((2, 4, 4, length, length), 64, torch.bfloat16), True, dynamic=True, own=True)
    with run.case("gradients of attention are the same bits in torch's deterministic mode"):
        _check_deterministic()
    with run.case("gradients of attention in a CUDA graph"):
        _check_replays()
    for width in (64, 128):
        operands = _operands(MASKED, width, torch.bfloat16)
        for sizes in ((2, 1, 300, 418), (1, 4, 300, 418), (300, 418)):
            for dtype in (torch.bool, torch.bfloat16):
                with run.case(f"gradients of attention of {width} with a mask of {dtype} {sizes}"):
                    keeps = torch.rand(sizes, device="cuda") < 0.7
                    if dtype != torch.bool:
                        keeps = torch.randn(sizes, device="cuda").masked_fill(~keeps, -math.inf).to(dtype)
                    _check_gradients(operands, False, keeps)
    own = _OWN[before:]
    print(f"{sum(own)} of {len(own)} functions and their gradients ran on kernels of ours alone")


# Batch, heads, heads of keys, length, width: the eight cases first.
MEASURED = (
    (4, 16, 16, 2048, 128), (4, 16, 16, 8192, 128), (4, 16, 16, 2048, 64), (4, 16, 16, 8192, 64),
    (4, 16, 16, 2048, 96), (2, 8, 8, 2048, 256), (32, 12, 12, 128, 64), (8, 12, 12, 512, 64),
    (4, 12, 12, 1024, 64), (4, 16, 16, 1000, 128), (1, 32, 8, 4096, 128), (8, 32, 8, 512, 128),
)  # fmt: skip


def _by(backend: SDPBackend, args: Tensors, is_causal: bool) -> Any:
    def fn() -> torch.Tensor:
        with sdpa_kernel(backend):
            return _attend(*args, is_causal=is_causal)

    return fn


class _Measured:
    """A case's operands, of bfloat16, and its sides: functions without arguments."""

    def __init__(self, sizes: tuple[int, ...], is_causal: bool, needs_grad: bool, has_own: bool = True) -> None:
        batch, heads, of_keys, length, width = sizes
        self.name = f"B={batch} H={heads}/{of_keys} S={length} D={width}{' causal' if is_causal else ''}"
        self.calls = 2 if length > 4096 else 10
        self.work = 4 * batch * heads * length * length * width / (2 if is_causal else 1)
        of_sides = (heads, of_keys, of_keys)
        self.args = [
            _heads(batch, count, length, width, torch.bfloat16, False).requires_grad_(needs_grad) for count in of_sides
        ]
        kiln_torch.reset()
        self.sides = {
            "cudnn": _by(SDPBackend.CUDNN_ATTENTION, self.args, is_causal),
            "flash": _by(SDPBackend.FLASH_ATTENTION, self.args, is_causal),
        }
        if has_own:
            by_kiln = compiled(lambda *args: _attend(*args, is_causal=is_causal))
            self.sides["kiln"] = lambda: by_kiln(*self.args)

    def times(self, sides: dict[str, Any]) -> dict[str, float]:
        """Microseconds of a call of each."""
        found = in_turns({side: replayed(fn, self.calls) for side, fn in sides.items()})
        return {side: time * 1e3 / self.calls for side, time in found.items()}


def _library_note() -> str:
    return " library" if kiln_torch.stats()["steps"]["library"] else ""


def _time(run: Results, sizes: tuple[int, ...], is_causal: bool) -> None:
    case = _Measured(sizes, is_causal, needs_grad=False)
    with run.case(f"bench attention {case.name}", quiet=True), torch.no_grad():
        times = case.times(case.sides)
        cells = " | ".join(f"{times[side]:.1f}" for side in case.sides)
        best = min(times["cudnn"], times["flash"]) / times["kiln"]
        rate = case.work / times["kiln"] / 1e6
        print(f"| {case.name} | {cells} | {rate:.0f} | {best:.2f}{_library_note()} |", flush=True)


def _time_training(run: Results, sizes: tuple[int, ...], is_causal: bool) -> None:
    case = _Measured(sizes, is_causal, needs_grad=True)
    with run.case(f"bench attention and gradients {case.name}", quiet=True):
        grad = torch.randn_like(case.sides["cudnn"]())

        def with_gradients(fn: Any) -> Any:
            return lambda: torch.autograd.grad(fn(), case.args, grad)

        forward = case.times(case.sides)
        both = case.times({side: with_gradients(fn) for side, fn in case.sides.items()})
        cells = [f"{forward[side]:.1f} + {both[side] - forward[side]:.1f}" for side in case.sides]
        best = min(both["cudnn"], both["flash"]) / both["kiln"]
        rate = 3.5 * case.work / both["kiln"] / 1e6
        print(
            f"| {case.name} | {' | '.join(cells)} | {rate:.0f} | {best:.2f}{_library_note()} |",
            flush=True,
        )


def speed(run: Results) -> None:
    print("\nattention, bf16: us of GPU time, calls in one CUDA graph; TFLOP/s; speed in the faster library's")
    print("| | cuDNN | flash | kiln | TFLOP/s | speed |")
    for sizes in MEASURED:
        for is_causal in (False, True):
            _time(run, sizes, is_causal)


# Batch, heads, heads of keys, length, width.
MEASURED_MMA = (
    (4, 16, 16, 2048, 64), (4, 16, 16, 8192, 64), (8, 12, 12, 512, 64), (32, 12, 12, 128, 64),
    (4, 16, 16, 2048, 96), (4, 16, 16, 2048, 128), (4, 16, 16, 8192, 128), (1, 32, 8, 4096, 128),
    (8, 32, 8, 512, 128), (4, 16, 16, 1000, 128), (2, 8, 8, 2048, 256),
)  # fmt: skip


def _time_mma(run: Results, sizes: tuple[int, ...], is_causal: bool, kind: str = "") -> None:
    """A case with a mask of that `kind`, or without one, beside libraries."""
    case = _Measured(sizes, is_causal, needs_grad=False, has_own=False)
    mask = None
    if kind:
        keeps = torch.rand(sizes[0], 1, sizes[3], sizes[3], device="cuda") < 0.7
        mask = keeps if kind == "bool" else torch.zeros_like(keeps, dtype=torch.bfloat16).masked_fill(~keeps, -math.inf)
        case.sides = {
            "cudnn": _by(SDPBackend.CUDNN_ATTENTION, [*case.args, mask], False),
            "efficient": _by(SDPBackend.EFFICIENT_ATTENTION, [*case.args, mask], False),
        }
    elif sizes[1] == sizes[2]:  # it has no shared keys
        case.sides["efficient"] = _by(SDPBackend.EFFICIENT_ATTENTION, case.args, is_causal)
    torch._dynamo.reset()
    with run.case(f"bench attention by mma.sync {case.name} {kind}", quiet=True), torch.no_grad():
        for arch in ARCHITECTURES:
            for how, mode in (("", "blocking"), (" timed", "max-autotune")):
                options = {"fallback": "raise", "mode": mode, **by_warps(arch)}
                fn = torch.compile(
                    lambda *args: _attend(*args, is_causal=is_causal), backend="kiln", dynamic=False, options=options
                )
                args = [*case.args] if mask is None else [*case.args, mask]
                for _ in range(3):
                    fn(*args)
                torch.cuda.synchronize()
                case.sides[f"{arch}{how}"] = lambda fn=fn, args=args: fn(*args)
        times = case.times(case.sides)
        cells = " | ".join(f"{side} {time:.1f}" for side, time in times.items())
        rate = case.work / min(time for side, time in times.items() if side.startswith("sm_")) / 1e6
        print(f"| {case.name} {kind} | {cells} | {rate:.0f} TFLOP/s |", flush=True)


def mma_speed(run: Results) -> None:
    """Own attention by mma.sync, by the cost model for such a device and by timing its shapes. On an H100
    flash and memory-efficient attention are by mma.sync, too; cuDNN has this machine's own instructions."""
    print("\nattention, bf16, by mma.sync: us of GPU time, calls in one CUDA graph")
    for sizes in MEASURED_MMA:
        for is_causal in (False, True):
            _time_mma(run, sizes, is_causal)
    for sizes in ((4, 16, 16, 2048, 64), (4, 16, 16, 2048, 128), (8, 12, 12, 512, 64), (8, 32, 32, 512, 128)):
        for kind in ("bool", "bfloat16"):
            _time_mma(run, sizes, False, kind)


def training_speed(run: Results) -> None:
    print("\nattention + its gradients, bf16: us of GPU time, calls in one CUDA graph; TFLOP/s and speed of both")
    print("| | cuDNN | flash | kiln | TFLOP/s | speed |")
    for sizes in MEASURED:
        for is_causal in (False, True):
            _time_training(run, sizes, is_causal)
