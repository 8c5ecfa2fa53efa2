"""Random operators that the server lowers: their numbers come from a seed, an argument of theirs.

See compiler/lowering/random.cc, which has the same list.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten

SEED = "kiln_seed"  # the keyword argument: one int64, which torch's default generator draws

SEEDED: frozenset[torch._ops.OpOverload] = frozenset(
    {
        aten.bernoulli.Tensor,
        aten.bernoulli.default,
        aten.bernoulli.p,
        aten.exponential.default,
        aten.native_dropout.default,
        aten.normal.Tensor_Tensor,
        aten.normal.Tensor_float,
        aten.normal.float_Tensor,
        aten.normal.float_float,
        aten.normal_functional.default,
        aten.rand.default,
        aten.rand_like.default,
        aten.randint.default,
        aten.randint.low,
        aten.randint_like.default,
        aten.randint_like.low_dtype,
        aten.randn.default,
        aten.randn_like.default,
        aten.randperm.default,
        aten.uniform.default,
    }
)
