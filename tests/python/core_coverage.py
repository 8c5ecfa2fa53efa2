"""How each Core ATen operator runs: native, decomposed, or as a library step of torch's, and why.

    PYTHONPATH=build/release/python KILN_BUILD=build/release python tests/python/core_coverage.py

torch's own samples of all operators run eager under a mode that sees each ATen call; the first calls
of each core operator are compiled as graphs of their own, and what the server made of them counts.
Exits 1 where a library step has no reason below, or a reason no library step. Takes three minutes.
"""

import argparse
import collections
import itertools
import os
import pathlib
import sys
import tempfile
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import kiln_torch
from kiln_torch.decompositions import decompositions

aten = torch.ops.aten
CALLS = 2  # of each operator
SEED = "aten.randint.low"  # what a graph with random operators draws it by

_FFT = "torch's library is a fast Fourier transform, loops would be a slow one"

# The operators that are library steps.
LIBRARY = {
    "_embedding_bag.default": "the bags' lengths are values of a tensor: taken apart into a scatter it is 4.7 times slower",
    "_fft_c2r.default": _FFT,
    "_fft_r2c.default": _FFT,
    "grid_sampler_2d.default": "gathers at run-time positions go lane by lane: taken apart it is 4 times slower",
}

# Those that no graph has: their values are sizes, or they write an argument.
NEVER_A_STEP = {
    "_local_scalar_dense.default": "a number, which a graph has as a size or breaks at",
    "_native_batch_norm_legit.default": "writes its arguments: graphs have a functional one, decomposed",
    "atan2.out": "writes an argument: graphs have atan2",
    "nonzero.default": "its result's size depends on values: torch breaks the graph there",
    "resize_.default": "writes an argument's size: not in a graph",
    "sym_is_contiguous.default": "a size's expression",
    "sym_numel.default": "a size's expression",
    "sym_size.int": "a size's expression",
    "sym_storage_offset.default": "a size's expression",
    "sym_stride.int": "a size's expression",
}


def core_operators():
    """Every overload that torch tags as core, by name without "aten."."""
    found = {}
    for full_name in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full_name.partition("::")
        if namespace != "aten":
            continue
        packet, _, overload = name.partition(".")
        try:
            op = getattr(getattr(aten, packet), overload or "default")
        except AttributeError:
            continue
        if torch.Tag.core in op.tags:
            found[f"{packet}.{overload or 'default'}"] = op
    return dict(sorted(found.items()))


class Calls(TorchDispatchMode):
    """Keeps copies of the first calls of some operators."""

    def __init__(self, wanted):
        super().__init__()
        self.seen = collections.defaultdict(list)
        self._wanted = frozenset(wanted)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        wanted = func in self._wanted and len(self.seen[func]) < CALLS
        call = tree_map(_copy, (args, kwargs)) if wanted else None
        result = func(*args, **kwargs)
        tensors = [a for a in tree_leaves((call, result)) if isinstance(a, torch.Tensor)]
        if wanted and all(t.numel() for t in tensors):
            self.seen[func].append(call)
        return result


def _copy(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _by_hand():
    """Calls that no sample makes."""
    image, volume, bits = torch.randn(1, 2, 6, 6), torch.randn(1, 2, 4, 6, 6), torch.arange(6)
    one, two = torch.rand(2), torch.rand(2)
    calls = {
        "_adaptive_avg_pool2d_backward.default": (torch.randn(1, 2, 3, 3), image),
        "_adaptive_avg_pool3d.default": (volume, [2, 3, 3]),
        "_embedding_bag.default": (image[0, 0], bits, bits[:3] * 2, False, 1),
        "_native_batch_norm_legit.no_stats": (image, None, None, True, 0.1, 1e-5),
        "_native_batch_norm_legit_no_training.default": (image, one, two, one, two, 0.1, 1e-5),
        "_pdist_forward.default": (torch.randn(4, 3), 2.0),
        "adaptive_avg_pool1d.default": (image[0], [3]),
        "any.dims": (image > 0, [0, 1]),
        "avg_pool1d.default": (image[0], [2]),
        "bitwise_and.Scalar": (bits, 3),
        "bitwise_and.Tensor": (bits, bits),
        "bitwise_not.default": (bits,),
        "bitwise_or.Scalar": (bits, 3),
        "bitwise_or.Tensor": (bits, bits),
        "bitwise_xor.Scalar": (bits, 3),
        "bitwise_xor.Tensor": (bits, bits),
        "clamp.default": (image, 0.0, 1.0),
        "col2im.default": (torch.randn(1, 18, 16), [6, 6], [3, 3], [1, 1], [0, 0], [1, 1]),
        "copy.default": (image, image + 1),
        "div.Scalar_mode": (image, 2.0),
        "empty_strided.default": ([2, 3], [3, 1]),
        "fmod.Scalar": (image, 2.0),
        "native_dropout.default": (image, 0.5, True),
        "nonzero.default": (image > 0,),
        "rand.default": ([3],),
        "randn.default": ([3],),
        "randperm.default": (5,),
        "reflection_pad2d.default": (image, [1] * 4),
        "reflection_pad3d.default": (volume, [1] * 6),
        "remainder.Scalar": (image, 2.0),
        "replication_pad3d.default": (volume, [1] * 6),
        "scalar_tensor.default": (2.0,),
        "squeeze.dims": (image[:, :1], [0, 1]),
        "upsample_bilinear2d.vec": (image, None, False, [2.0, 2.0]),
        "upsample_nearest2d.vec": (image, None, [2.0, 2.0]),
        "var.dim": (image, [1]),
    }
    keywords = {"div.Scalar_mode": {"rounding_mode": "floor"}}
    return {name: (args, keywords.get(name, {})) for name, args in calls.items()}


def sample_calls(operators):
    """{name: [(args, kwargs)]} from torch's samples, forward and backward, in float32."""
    mode = Calls(operators.values())
    for info in op_db:
        if torch.float32 not in info.supported_dtypes("cpu") or info.name.startswith("jiterator"):
            continue
        try:
            differentiable = info.supports_autograd
            samples = info.sample_inputs("cpu", torch.float32, requires_grad=differentiable)
            for sample in itertools.islice(samples, 2):
                with mode:
                    result = info.op(sample.input, *sample.args, **sample.kwargs)
                    outputs = [
                        leaf for leaf in tree_leaves(result)
                        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
                    ]  # fmt: skip
                    if outputs:
                        gradients = [torch.randn_like(out) for out in outputs]
                        torch.autograd.backward(outputs, gradients)
        except (RuntimeError, NotImplementedError):
            continue  # eager itself cannot
    by_hand = _by_hand()
    return {
        name: mode.seen[op] + ([by_hand[name]] if name in by_hand else [])
        for name, op in operators.items()
    }


def library_steps(op, args, kwargs):
    """Names of torch's operators in the program for one call; None where there is no graph."""
    leaves, spec = tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors):
        values = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        args, kwargs = tree_unflatten(values, spec)
        return op(*args, **kwargs)

    torch._dynamo.reset()
    kiln_torch.reset()
    compiled = torch.compile(call, backend="kiln", dynamic=False)
    with torch.no_grad():
        compiled(*(leaves[i] for i in places))
    stats = kiln_torch.stats()
    return set(stats["library_ops"]) if stats["graphs"] else None


def classify(name, op, calls):
    """(kind, note) of an operator after `calls` of it."""
    if name in NEVER_A_STEP:
        return "never a step", NEVER_A_STEP[name]
    outcomes = []
    for args, kwargs in calls:
        try:
            outcomes.append(library_steps(op, args, kwargs))
        except Exception as error:
            return "unknown", f"{type(error).__name__}: {str(error).splitlines()[0]}"
    outcomes = [steps for steps in outcomes if steps is not None]
    if not outcomes:
        return "unknown", "no graph of it"
    # A seed is no work of the operator's.
    in_library = sum(bool(steps - {SEED}) for steps in outcomes)
    if in_library == len(outcomes):
        return "library", LIBRARY.get(name, "")
    note = f"{in_library} of {len(outcomes)} calls are library steps" if in_library else ""
    return ("decomposed" if op in decompositions() else "native"), note


def report(operators):
    """Prints the table; whether every library step has its reason and every reason a step."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    calls = sample_calls(operators)
    counts = collections.Counter()
    fine = True
    for name, op in operators.items():
        kind, note = classify(name, op, calls[name])
        counts[kind] += 1
        print(f"{name:44} {kind:13} {note}".rstrip(), flush=True)
        fine &= kind != "unknown" and (kind == "library") == (name in LIBRARY)
    print(f"\n{len(operators)} operators: " + ", ".join(f"{n} {k}" for k, n in counts.items()))
    return fine


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--ops", nargs="*", help="these operators only, as 'add.Tensor'")
    options = parser.parse_args()
    from conftest import Server

    operators = core_operators()
    if options.ops:
        operators = {name: operators[name] for name in options.ops}
    with tempfile.TemporaryDirectory() as folder:
        server = Server(pathlib.Path(folder) / "data")
        os.environ["KILN_SERVER"] = server.address
        try:
            return 0 if report(operators) else 1
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
