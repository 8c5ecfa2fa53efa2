"""Parts of check.py about matrix products with more work on the result.

Which of them are kernels of ours and which are library steps the compiler decides by its cost model.
Parts products_mma and bench_products_mma are about the products by mma.sync of devices that are not
sm_90a: they compile for such a device, with no step left to a library, and run on this machine's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kiln_torch
import torch
from bench import CALLS, in_turns, replayed
from measure import Results, compiled

F = torch.nn.functional
HALVES = (torch.bfloat16, torch.float16)
# By norm, of the error to float32's result of the same 16-bit numbers: as after two or three roundings.
MOST_ERROR = {torch.bfloat16: 4e-3, torch.float16: 5e-4}
# M, N, K: one at least for each shape of tiles, then what no tile divides.
SIZES = (
    (513, 5440, 136), (4265, 776, 136), (520, 4240, 1024), (1536, 1536, 2048),
    (1740, 904, 520), (4229, 440, 136), (908, 4768, 136), (387, 5432, 520), (2344, 1264, 136),
    (2823, 3632, 200), (532, 5416, 520), (1666, 4768, 136), (772, 5400, 136), (259, 4384, 136),
    (770, 4680, 136), (258, 3624, 264), (2834, 200, 136), (4282, 136, 704), (260, 4392, 704),
    (135, 5312, 136), (129, 144, 192), (131, 2128, 3072), (130, 136, 264), (200, 264, 136),
    (129, 136, 1000), (1000, 1008, 2008), (3000, 2000, 1000), (2048, 3072, 768),
    (4096, 768, 3072), (1536, 1536, 6144), (4096, 4096, 4096),
)  # fmt: skip
# Of columns that are no multiple of 8, whose results are stored one by one.
RAGGED = ((2048, 50257, 768), (513, 5001, 136), (1000, 1002, 2008), (130, 1331, 264), (3000, 30522, 768))
# By mma.sync: for each shape of tiles, then what no tile divides, few rows, a single step.
SIZES_BY_WARPS = (
    (513, 5440, 136), (4265, 776, 136), (520, 4240, 1024), (1740, 904, 520), (387, 5432, 520),
    (2823, 3632, 200), (129, 144, 192), (131, 2128, 3072), (1000, 1008, 2008), (2834, 200, 136),
    (1, 4096, 512), (17, 776, 264), (65, 64, 8), (2048, 3200, 4096), (4096, 4096, 4096),
)  # fmt: skip
RAGGED_BY_WARPS = ((513, 5001, 136), (130, 1331, 264), (2048, 50257, 768))
ARCHITECTURES = ("sm_80", "sm_90")
Fn = Callable[..., Any]
Tensors = list[torch.Tensor]
# Of each function that was checked, whether it had no library step: the cost model decides.
_OWN: list[bool] = []


def is_own() -> bool:
    return torch.cuda.get_device_capability() == (9, 0)


def random_matrix(*sizes: int, dtype: torch.dtype, turned: bool = False) -> torch.Tensor:
    """Of unit variance; `turned`: its first dimension is the contiguous one."""
    x = torch.randn(sizes[::-1] if turned else sizes, device="cuda").to(dtype)
    return x.t() if turned else x


def _poison(bytes_of_memory: int) -> None:
    """What is allocated next was NaN before."""
    torch.full((bytes_of_memory // 4,), float("nan"), device="cuda")


def by_warps(arch: str) -> dict[str, str]:
    """Options for kernels alone, of that architecture; none for "", this machine's."""
    return {"arch": arch, "libraries": "none"} if arch else {}


def check_product(fn: Fn, args: Tensors, widens: bool = False, arch: str = "") -> None:
    """fn(*args) by Kiln against the same numbers in float32, where `arch` is said in float64; where
    it `widens`, of integers too."""
    kiln_torch.reset()
    run = compiled(fn, **by_warps(arch))
    wide_type = torch.float64 if arch else torch.float32
    with torch.no_grad():
        wide = fn(*(arg.to(wide_type) if widens or arg.is_floating_point() else arg for arg in args))
        run(*args)
        torch.cuda.synchronize()
        for _ in range(2):
            _poison(sum(w.numel() for w in wide) * 4 if isinstance(wide, tuple) else wide.numel() * 4)
            found = run(*args)
            pairs = zip(found, wide, strict=True) if isinstance(wide, tuple) else [(found, wide)]
            for ours, reference in pairs:
                assert ours.shape == reference.shape, (ours.shape, reference.shape)
                error = float((ours.to(wide_type) - reference).norm() / reference.norm())
                assert error <= MOST_ERROR[args[0].dtype], f"off by {error:.2e} of the norm"
    if arch:
        assert kiln_torch.stats()["steps"]["library"] == 0, "a step is left to a library"
    _OWN.append(kiln_torch.stats()["steps"]["library"] == 0)


def _sizes(run: Results, arch: str = "") -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b), approximate="tanh")

    for number, (m, n, k) in enumerate(SIZES_BY_WARPS if arch else SIZES):
        for dtype in HALVES[number % 2 :][:1] if arch else HALVES:
            with run.case(f"product {m} x {n} x {k} {dtype} {arch}"):
                w = random_matrix(n, k, dtype=dtype) * k**-0.5
                args = [random_matrix(m, k, dtype=dtype), w, random_matrix(n, dtype=dtype)]
                check_product(fn, args, arch=arch)


def ragged(run: Results, arch: str = "") -> None:
    for number, (m, n, k) in enumerate(RAGGED_BY_WARPS if arch else RAGGED):
        for dtype in HALVES[number % 2 :][:1] if arch else HALVES:
            x = random_matrix(m, k, dtype=dtype)
            w, b = random_matrix(n, k, dtype=dtype) * k**-0.5, random_matrix(n, dtype=dtype)
            more: dict[str, Fn] = {
                "": lambda p: p,
                ", then to float32": lambda p: p.float() * 2,
                ", then a bias and relu": lambda p, b=b: F.relu(p + b),
                ", then two results": lambda p: (F.gelu(p, approximate="tanh"), p.sigmoid()),
            }
            for name, then in more.items():
                with run.case(f"product {m} x {n} x {k} {dtype}{name} {arch}"):
                    check_product(lambda x, w, then=then: then(F.linear(x, w)), [x, w], arch=arch)


def _layouts(run: Results, arch: str = "") -> None:
    for a_turned in (False, True):
        for b_turned in (False, True):
            for m, n, k in ((264, 520, 328), (2048, 3072, 768), (1000, 1000, 1000)):
                with run.case(f"product of turned operands {a_turned} {b_turned} {m} x {n} x {k} {arch}"):
                    a = random_matrix(m, k, dtype=torch.bfloat16, turned=a_turned)
                    b = random_matrix(k, n, dtype=torch.bfloat16, turned=b_turned) * k**-0.5
                    check_product(lambda a, b: F.relu(a @ b) + 1, [a, b], arch=arch)
    with run.case(f"product of a part of a wider matrix {arch}"):
        wide, w = random_matrix(512, 3 * 256, dtype=torch.bfloat16), random_matrix(512, 256, dtype=torch.bfloat16)
        check_product(lambda x, w: F.silu(x[:, 256:512] @ w.t() / 16), [wide, w], arch=arch)


def _epilogues(run: Results, arch: str = "") -> None:
    m, n, k = 1032, 776, 512
    half = torch.bfloat16

    def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w.t()

    more: dict[str, tuple[Fn, list[torch.Tensor]]] = {
        "gelu(erf)": (lambda p: F.gelu(p), []),
        "silu times another": (lambda p, y: F.silu(p) * y, [random_matrix(m, n, dtype=half)]),
        "bias and residual": (
            lambda p, b, y: p + b + y, [random_matrix(n, dtype=half), random_matrix(m, n, dtype=half)]
        ),
        "residual that is turned": (lambda p, y: p + y, [random_matrix(m, n, dtype=half, turned=True)]),
        "rows and columns scaled": (
            lambda p, r, c: p * r + c, [random_matrix(m, 1, dtype=half), random_matrix(1, n, dtype=torch.float32)]
        ),
        "to float32": (lambda p: p.float() * 2, []),
        "mask": (
            lambda p, y: torch.where(y > 0, p, torch.zeros_like(p)), [random_matrix(m, n, dtype=half)]
        ),
        "two results": (lambda p: (F.gelu(p, approximate="tanh"), p.sigmoid()), []),
    }  # fmt: skip
    for name, (then, args) in more.items():
        with run.case(f"product, then {name} {arch}"):
            x, w = random_matrix(m, k, dtype=half), random_matrix(n, k, dtype=half) * k**-0.5
            check_product(
                lambda x, w, *rest, then=then: then(linear(x, w), *rest), [x, w, *args], arch=arch
            )
    with run.case(f"product of a batch of sequences {arch}"):
        w, b = random_matrix(768, 512, dtype=half) * 512**-0.5, random_matrix(768, dtype=half)
        x = random_matrix(8 * 130, 512, dtype=half).view(8, 130, 512)
        check_product(lambda x, w, b: F.gelu(F.linear(x, w, b)), [x, w, b], arch=arch)
    with run.case(f"product before a residual and a normalization {arch}"):
        x, w = random_matrix(1024, 512, dtype=half), random_matrix(512, 512, dtype=half) * 512**-0.5
        check_product(lambda x, w: F.layer_norm((x @ w.t() + x).float(), (512,)), [x, w], arch=arch)


def products(run: Results) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    _sizes(run)
    ragged(run)
    _layouts(run)
    _epilogues(run)
    print(f"{sum(_OWN)} of {len(_OWN)} functions ran on kernels of ours alone")
    if is_own():
        with run.case("products are kernels of ours"):
            assert sum(_OWN) > len(_OWN) // 4, "nearly all are left to libraries"


def products_mma(run: Results) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    for arch in ARCHITECTURES:
        for part in (_sizes, ragged, _layouts, _epilogues):
            part(run, arch)


# Of the table that these are compared with; the largest last.
MEASURED = (
    (128, 4096, 4096), (256, 5120, 5120), (512, 3072, 768), (512, 768, 3072), (1024, 1024, 1024),
    (2048, 3072, 768), (4096, 768, 3072), (1536, 1536, 6144), (3000, 2000, 1000),
    (1200, 5000, 2000), (8192, 3072, 768), (4096, 4096, 4096), (8192, 4096, 4096),
    (4096, 11008, 4096), (8192, 50304, 768),
)  # fmt: skip


def _time(run: Results, approximate: str) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b), approximate=approximate)

    print(f"\ngelu(x w^T + b), gelu {approximate}, bf16: us of GPU time, {CALLS} calls in one CUDA graph")
    print(
        f"{'M x N x K':22} {'cuBLAS linear':>14} {'eager':>9} {'inductor':>9} {'kiln':>9}"
        "  TFLOP/s, kiln's speed in cuBLAS's and in eager's; error by norm, eager's"
    )
    for m, n, k in MEASURED:
        with run.case(f"bench product {approximate} {m} x {n} x {k}"), torch.no_grad():
            x = random_matrix(m, k, dtype=torch.bfloat16)
            w = random_matrix(n, k, dtype=torch.bfloat16) * k**-0.5
            b = random_matrix(n, dtype=torch.bfloat16)
            torch._dynamo.reset()
            kiln_torch.reset()
            by_kiln = torch.compile(fn, backend="kiln", dynamic=False, options={"fallback": "raise"})
            sides = {
                "linear": F.linear,
                "eager": fn,
                "inductor": torch.compile(fn, dynamic=False),
                "kiln": by_kiln,
            }
            wide = fn(x.float(), w.float(), b.float())
            errors = [float((f(x, w, b).float() - wide).norm() / wide.norm()) for f in (by_kiln, fn)]
            del wide
            times = in_turns({
                name: replayed(lambda f=f, args=(x, w, b): f(*args)) for name, f in sides.items()
            })
            cells = " ".join(
                f"{times[name] * 1e3 / CALLS:{14 if name == 'linear' else 9}.1f}" for name in sides
            )
            rate = 2 * m * n * k * CALLS / times["kiln"] / 1e9
            print(
                f"{f'{m} x {n} x {k}':22} {cells}  {rate:5.0f} {times['linear'] / times['kiln']:5.2f}x"
                f" {times['eager'] / times['kiln']:5.2f}x  {errors[0]:.1e} {errors[1]:.1e}"
                f"  {kiln_torch.stats()['steps']}",
                flush=True,
            )
            assert errors[0] <= MOST_ERROR[torch.bfloat16], "the result is wrong"


def speed(run: Results) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    for approximate in ("tanh", "none"):
        _time(run, approximate)


# Columns that are no multiple of 8: last products of language models.
RAGGED_MEASURED = (
    (2048, 50257, 768), (8192, 50257, 768), (512, 50257, 1024), (2048, 30522, 768),
    (4096, 50257, 2048), (128, 1001, 512),
)  # fmt: skip


def ragged_speed(run: Results) -> None:
    """The library's results of padded weights are those with strides that are not eager's."""
    print("\nx w^T, bf16: us of GPU time, 5 calls in one CUDA graph")
    for m, n, k in RAGGED_MEASURED:
        with run.case(f"bench product {m} x {n} x {k}"), torch.no_grad():
            x = random_matrix(m, k, dtype=torch.bfloat16)
            w = random_matrix(n, k, dtype=torch.bfloat16) * k**-0.5
            padded = F.pad(w, (0, 0, 0, -n % 8))
            torch._dynamo.reset()
            by_kiln = torch.compile(
                F.linear, backend="kiln", dynamic=False, options={"fallback": "raise"}
            )
            sides = {
                "kiln": lambda by_kiln=by_kiln, x=x, w=w: by_kiln(x, w),
                "cuBLAS": lambda x=x, w=w: F.linear(x, w),
                "padded": lambda x=x, padded=padded: F.linear(x, padded),
                "padded, copied": lambda x=x, padded=padded, n=n: F.linear(x, padded)[:, :n].contiguous(),
            }
            times = in_turns({name: replayed(side, 5) for name, side in sides.items()})
            print(f"{f'{m} x {n} x {k}':22}", *(f"{name} {times[name] * 200:.1f}" for name in sides), flush=True)


def _linear_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b), approximate="tanh")


def _kiln_side(args: Tensors, **options: str) -> Fn:
    """The function by Kiln, compiled; where schedules are timed, with the fastest."""
    options = {"fallback": "raise", **options}
    by_kiln = torch.compile(_linear_gelu, backend="kiln", dynamic=False, options=options)
    for _ in range(3):
        by_kiln(*args)
    torch.cuda.synchronize()
    return by_kiln


def speed_mma(run: Results) -> None:
    """Own products by mma.sync, by the cost model for such a device and by timing its schedules,
    beside cuBLAS, which has this machine's own instructions."""
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"\ngelu(x w^T + b), bf16, by mma.sync: us of GPU time, {CALLS} calls in one CUDA graph")
    names = [f"{arch}{how}" for arch in ARCHITECTURES for how in ("", " timed")]
    print(f"{'M x N x K':22} {'cuBLAS linear':>14} {'eager':>9} " + " ".join(f"{n:>12}" for n in names))
    for m, n, k in MEASURED:
        with run.case(f"bench product by mma.sync {m} x {n} x {k}", quiet=True), torch.no_grad():
            x = random_matrix(m, k, dtype=torch.bfloat16)
            w = random_matrix(n, k, dtype=torch.bfloat16) * k**-0.5
            args = [x, w, random_matrix(n, dtype=torch.bfloat16)]
            torch._dynamo.reset()
            kiln_torch.reset()
            sides: dict[str, Fn] = {"linear": F.linear, "eager": _linear_gelu}
            for name, (arch, mode) in zip(
                names, ((a, m) for a in ARCHITECTURES for m in ("blocking", "max-autotune")), strict=True
            ):
                sides[name] = _kiln_side(args, mode=mode, **by_warps(arch))
            wide = _linear_gelu(*(arg.float() for arg in args))
            errors = [float((sides[name](*args).float() - wide).norm() / wide.norm()) for name in names]
            del wide
            runs = {name: replayed(lambda f=f, args=args: f(*args)) for name, f in sides.items()}
            times = in_turns(runs)
            cells = [f"{times[name] * 1e3 / CALLS:12.1f}" for name in names]
            rate = 2 * m * n * k * CALLS / min(times[name] for name in names) / 1e9
            print(
                f"{f'{m} x {n} x {k}':22} {times['linear'] * 1e3 / CALLS:14.1f}"
                f" {times['eager'] * 1e3 / CALLS:9.1f} {' '.join(cells)}  {rate:5.0f} TFLOP/s"
                f"  error {max(errors):.1e}",
                flush=True,
            )
            assert max(errors) <= MOST_ERROR[torch.bfloat16], "the result is wrong"
