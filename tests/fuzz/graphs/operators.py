"""The operators of random programs, by family. A line here is all that a new one needs."""

from templates import templates

POINTWISE = templates(
    """
    torch.sin(<f>)
    torch.cos(<f>)
    torch.tanh(<f>)
    torch.sigmoid(<f>)
    torch.exp(<f>)
    torch.exp(-<f>.abs())
    torch.expm1(<f>)
    torch.log1p(<f>.abs())
    torch.log(<f>.abs() + 0.5)
    torch.sqrt(<f>.abs() + 0.1)
    torch.rsqrt(<f>.abs() + 0.5)
    torch.reciprocal(<f>.abs() + 0.5)
    torch.erf(<f>)
    torch.atan(<f>)
    torch.asinh(<f>)
    F.gelu(<f>)
    F.gelu(<f>, approximate="tanh")
    F.silu(<f>)
    F.softplus(<f>)
    F.mish(<f>)
    F.elu(<f>, alpha=<p>)
    F.selu(<f>)
    F.logsigmoid(<f>)
    F.hardswish(<f>)
    F.hardsigmoid(<f>)
    torch.div(<n>, <n~>.abs() + 1)
    torch.div(<n>, <k>)
    <n> / <c>
    <c> / (<n>.abs() + 1)
    torch.pow(<f>.abs() + 0.1, <c>)
    torch.pow(<f>, 3)
    torch.pow(2, <f>)
    torch.atan2(<f>, <f~>.abs() + 0.5)
    torch.lerp(<f>, <f~>, <f~>)
    torch.lerp(<f>, <f~>, <c>)
    torch.addcdiv(<f>, <f~>, <f~>.abs() + 1, value=<c>)
    torch.hypot(<f>, <f~>)
    torch.logaddexp(<f>, <f~>)
    torch.xlogy(<f>, <f~>.abs() + 0.5)
    torch.sinc(<f>)
    """
) + templates(
    """
    torch.neg(<n>)
    torch.abs(<n>)
    torch.square(<n>)
    torch.relu(<n>)
    F.leaky_relu(<f>, <p>)
    F.hardtanh(<f>, -0.5, 1.5)
    F.relu6(<f>)
    F.threshold(<f>, 0.5, -1.0)
    torch.add(<a>, <a~>)
    torch.sub(<n>, <n~>)
    torch.mul(<a>, <a~>)
    torch.add(<n>, <n~>, alpha=<k>)
    torch.sub(<n>, <n~>, alpha=<k>)
    <a> + <k>
    <a> * <k>
    <n> + <c>
    <n> * <c>
    <k> - <n>
    <c> - <n>
    torch.maximum(<n>, <n~>)
    torch.minimum(<n>, <n~>)
    torch.addcmul(<f>, <f~>, <f~>, value=<k>)
    torch.clamp(<n>, min=<k>)
    torch.clamp(<n>, max=<k>)
    torch.clamp(<n>, -1, 2)
    torch.clamp(<n>, min=<n~>)
    torch.where(<m>, <a~>, <a~>)
    torch.where(<m>, <n~>, <c>)
    torch.where(<m>, <k>, <n~>)
    torch.masked_fill(<n>, <m~>, <k>)
    torch.copysign(<f>, <F~>)
    torch.pow(<n>, 2)
    torch.positive(<n>)
    """,
    exact="yes",
)

DISCRETE = templates(
    """
    torch.floor(<F>)
    torch.ceil(<F>)
    torch.round(<F>)
    torch.trunc(<F>)
    torch.frac(<F>)
    torch.sign(<N>)
    torch.sgn(<N>)
    torch.eq(<A>, <A~>)
    torch.ne(<A>, <A~>)
    torch.lt(<N>, <N~>)
    torch.le(<N>, <N~>)
    torch.gt(<N>, <N~>)
    torch.ge(<N>, <N~>)
    <A> < <k>
    <A> >= <c>
    <A> == <k>
    torch.isnan(<n>)
    torch.isfinite(<n>)
    torch.isinf(<f>)
    torch.signbit(<N>)
    torch.logical_not(<A>)
    torch.logical_and(<A>, <A~>)
    torch.logical_or(<A>, <A~>)
    torch.logical_xor(<A>, <A~>)
    torch.bitwise_not(<i>)
    ~<m>
    torch.bitwise_and(<i>, <i~>)
    torch.bitwise_or(<i>, <i~>)
    torch.bitwise_xor(<i>, <i~>)
    <m> & <m~>
    <m> ^ <m~>
    <i> << 2
    <i> >> 1
    torch.floor_divide(<N>, <k>)
    torch.div(<N>, <N~>, rounding_mode="floor")
    torch.div(<N>, <N~>, rounding_mode="trunc")
    torch.div(<N>, <k>, rounding_mode="trunc")
    torch.remainder(<N>, <k>)
    torch.remainder(<N>, <N~>)
    torch.fmod(<N>, <k>)
    torch.fmod(<N>, <c>)
    torch.heaviside(<F>.detach(), <F~>.detach())
    torch.nextafter(<f>, <f~>) * 0
    torch.gcd(<i>, <i~>)
    """,
    exact="yes",
)

CASTS = templates(
    """
    <a>.to(<T>)
    <a>.to(<T>)
    <A>.to(<I>)
    <A>.to(<I>)
    <A>.bool()
    <a>.type_as(<f>)
    <A>.to(<i>.dtype)
    <a>.to(<0>.dtype)
    """,
    exact="yes",
)

REDUCTIONS = templates(
    """
    torch.mean(<f>)
    torch.mean(<f>, <D>, keepdim=<t>)
    torch.mean(<n>, <d>, dtype=<T>)
    torch.prod(<f>, <d>, keepdim=<t>)
    torch.var(<f>, <D>, correction=0)
    torch.var(<f>, <d>, keepdim=<t>)
    torch.std(<f> + 0.1, <d>, keepdim=<t>)
    torch.logsumexp(<f>, <D>, keepdim=<t>)
    torch.linalg.vector_norm(<f>, dim=<d>)
    torch.linalg.vector_norm(<f>, 1, dim=<D>)
    torch.norm(<f>)
    torch.cumprod(<f>, <d>)
    torch.logcumsumexp(<f>, <d>)
    """
) + templates(
    """
    torch.sum(<a>)
    torch.sum(<a>, <d>)
    torch.sum(<a>, <D>, keepdim=<t>)
    torch.sum(<n>, <d>, dtype=<T>)
    torch.cumsum(<n>, <d>)
    torch.cumsum(<n>, <d>, dtype=<T>)
    """,
    exact="sum",
) + templates(
    """
    torch.amax(<n>, <D>, keepdim=<t>)
    torch.amin(<n>, <d>, keepdim=<t>)
    torch.max(<n>)
    torch.min(<n>)
    torch.prod(<i>, <d>)
    torch.all(<A>, <d>)
    torch.any(<A>, <d>, keepdim=<t>)
    torch.all(<A>)
    torch.any(<A>)
    torch.argmax(<N>, <d>, keepdim=<t>)
    torch.argmin(<N>, <d>)
    torch.count_nonzero(<A>, <d>)
    torch.aminmax(<n>, dim=<d>)[0]
    torch.cummax(<N>, <d>)[0]
    torch.cummin(<N>, <d>)[1]
    torch.max(<N>, <d>)[1]
    """,
    exact="yes",
) + templates(
    """
    torch.max(<N>, <d>, keepdim=<t>)
    torch.min(<N>, <d>)
    torch.sort(<N>, dim=<d>, stable=True)
    torch.topk(<N1>, 1)
    """,
    exact="yes",
    results=2,
) + templates(
    """
    torch.var_mean(<f>, <d>)
    """,
    results=2,
)

VIEWS = templates(
    """
    <a>.unsqueeze(<e>)
    <a>.squeeze()
    <a>.squeeze(<d>)
    <a2>.transpose(<d>, <d>)
    <a2>.mT
    <a>.permute(*reversed(range(<0>.dim())))
    <a2>.movedim(<d>, <d>)
    <a1>.flip(<d>)
    <a1>.roll(1, <d>)
    <a1>.roll(-2, <d>)
    <a2>.flatten()
    <a2>.flatten(-2)
    <a2>.reshape(-1)
    <a>.reshape(1, -1)
    <a2>.diagonal()
    <a2>.diagonal(1)
    <a1>[1:]
    <a1>[:-1]
    <a1>[::2]
    <a1>[-1]
    <a1>[0]
    <a2>[:, 1:]
    <a2>[:, ::3]
    <a2>[..., 0]
    <a2>[..., -1:]
    <a>[None]
    <a>[..., None]
    <a1>.narrow(<d>, 0, 1)
    <a1>.select(<d>, 0)
    <a1>.unfold(<d>, 2, 1)
    <a>.clone()
    <a>.contiguous()
    <a>.detach()
    <a>.expand_as(<a~>)
    torch.broadcast_to(<a>, (2, *<0>.shape))
    <a1>.repeat(2, *[1] * (<0>.dim() - 1))
    <a1>.repeat_interleave(2, <d>)
    <a2>.tril()
    <a2>.triu(1)
    <a>.view(<0>.shape)
    <a>.reshape(<a=>.shape)
    torch.atleast_2d(<a>)
    torch.diag_embed(<a1>)
    """,
    exact="yes",
) + templates(
    """
    torch.broadcast_tensors(<a>, <a~>)
    torch.tensor_split(<a1>, 2)
    torch.tensor_split(<a1>, 2, dim=<d>)
    """,
    exact="yes",
    results=2,
)

JOINS = templates(
    """
    torch.cat([<a1>, <0>], <d>)
    torch.cat([<a1>, <a=>], <d>)
    torch.cat([<a1>, <a=>, <0>], <d>)
    torch.stack([<a>, <a=>], <e>)
    torch.stack([<a>, <0>, <a=>])
    torch.hstack([<a1>, <a=>])
    torch.cat([<a1>.flatten(), <a1>.flatten()])
    F.pad(<n1>, (1, 2))
    F.pad(<n1>, (0, 1), value=<k>)
    F.pad(<n2>, (1, 0, 0, 2), value=<c>)
    F.pad(<n1>, (-1, 1))
    F.pad(<f2>, (1, 1), mode="replicate")
    F.pad(<f3>, (1, 1), mode="reflect")
    F.pad(<f3>, (1, 0), mode="circular")
    """,
    exact="yes",
)

CREATION = templates(
    """
    torch.zeros_like(<a>)
    torch.full_like(<n>, <k>)
    torch.ones(<a1>.shape[-1])
    <a>.new_zeros(<0>.shape)
    <n>.new_full(<0>.shape, <k>)
    torch.arange(<a1>.shape[0])
    torch.arange(<a1>.shape[0], dtype=torch.float32) * 0.5
    torch.arange(1, 2 * <a1>.shape[-1], 2)
    torch.eye(<a1>.shape[0])
    torch.tensor(<c>)
    torch.full((<a1>.shape[0], 2), <c>)
    """,
    exact="yes",
) + templates(
    """
    torch.linspace(0, 1, 5)
    """
)

# Indices stay inside by a remainder; those that are written through hold no value twice.
INDEXING = templates(
    """
    <a1>[(<i> % <0>.size(0)).long()]
    <a2>[:, (<i> % <0>.size(1)).long()]
    <a2>[(<i> % <0>.size(0)).long(), (<1> % <0>.size(1)).long()]
    <a2>[torch.arange(<0>.size(0)), 0]
    torch.index_select(<a2>, 1, (<i1>.flatten() % <0>.size(1)).int())
    torch.gather(<a1>, <d>, torch.zeros_like(<0>, dtype=torch.int64))
    torch.take_along_dim(<N2>, <0>.argsort(1, stable=True), 1)
    F.embedding((<i> % 2).long(), <f2>[:2])
    torch.where(<m=>, <m>, <0>)
    torch.bucketize(<N>, torch.tensor([-1.0, 0.5, 2.0]))
    F.one_hot(<i> % 3, 3)
    <n1>.index_copy(0, torch.arange(<0>.size(0)).flip(0), <0>)
    <n1>.index_fill(0, torch.zeros(1, dtype=torch.int64), <k>)
    <n1>.scatter(0, torch.zeros_like(<0>, dtype=torch.int64), <k>)
    <n1>.scatter_reduce(0, torch.zeros_like(<0>, dtype=torch.int64), <0>, "amax")
    <n1>.masked_scatter(<0> > 0, <0>)
    <n1>.contiguous().select_scatter(<0>.select(0, 0) * 2, 0, -1)
    <n1>.slice_scatter(<0>[1:], 0, 0, -1)
    <n2>.diagonal_scatter(<0>.diagonal() + 1)
    torch.isin(<i>, <i>)
    """,
    exact="yes",
) + templates(
    """
    <n1>.index_add(0, (torch.arange(<0>.size(0)) % 2), <0>)
    <n1>.scatter_add(0, torch.zeros_like(<0>, dtype=torch.int64), <0>)
    <n1>.index_put(((torch.arange(<0>.size(0)) // 2),), <0>, accumulate=True)
    """,
    exact="sum",
)

MATMUL = templates(
    """
    <f2> @ <0>.mT
    torch.matmul(<f2>, <f2>)
    torch.matmul(<f1>, <f2>)
    torch.matmul(<f2>, <f1>)
    torch.outer(<f1>, <f1>)
    torch.einsum("...ij,...kj->...ik", <f2>, <0>)
    torch.einsum("ij,jk->ki", <f2>, <f2>)
    torch.addmm(<f>, <f2>, <f2>, beta=<k>, alpha=<k>)
    torch.baddbmm(<f>, <f3>, <0>.mT)
    F.linear(<f2>, <f2>)
    torch.tensordot(<f2>, <0>, dims=([0], [0]))
    torch.matmul(<f3>, <f2>.mT)
    """,
    exact="sum",
)

NORMALIZE = templates(
    """
    F.softmax(<f>, <d>)
    F.log_softmax(<f>, <d>)
    F.softmax(<f>, <d>, dtype=torch.float32)
    F.softmin(<f>, <d>)
    F.layer_norm(<f1>, <0>.shape[-1:])
    F.layer_norm(<f2>, <0>.shape[-2:], eps=1e-3)
    F.rms_norm(<f1>, <0>.shape[-1:], eps=1e-3)
    F.group_norm(<f3>, 1)
    F.batch_norm(<f2>, None, None, training=True)
    F.instance_norm(<f3>)
    F.normalize(<f1> + 0.1, dim=<d>)
    F.mse_loss(<f>, <f=>)
    F.smooth_l1_loss(<f>, <f=>)
    F.l1_loss(<f>, <f=>, reduction="sum")
    F.binary_cross_entropy_with_logits(<f>, <f=>.sigmoid())
    F.cross_entropy(<f2>, torch.zeros(<0>[:, 0].shape, dtype=torch.int64))
    F.kl_div(<f>.log_softmax(<d>), <f=>.softmax(<d>))
    F.cosine_similarity(<f2> + 0.1, <f=> - 0.1, dim=<d>)
    F.scaled_dot_product_attention(<f3>, <0>, <0>)
    F.scaled_dot_product_attention(<f3>, <0>, <0>, is_causal=True)
    F.glu(torch.cat([<f1>, <0>], -1))
    """
)

WINDOWS = templates(
    """
    F.avg_pool1d(<f3>, 2, 1)
    F.avg_pool2d(<f3>, 2, stride=1, padding=1)
    F.max_pool1d(<f3>, 2)
    F.max_pool2d(<f3>, 2, stride=2, ceil_mode=<t>)
    F.max_pool2d(<f3>, 3, stride=1, padding=1)
    F.adaptive_avg_pool1d(<f3>, 2)
    F.adaptive_avg_pool2d(<f3>, 1)
    F.interpolate(<f3>, scale_factor=2, mode="nearest")
    F.interpolate(<f3>, scale_factor=2, mode="linear")
    F.unfold(<f3>[None][:, :2], 2)
    F.pixel_unshuffle(F.interpolate(<f3>[None], scale_factor=2), 2)
    """
)

IN_PLACE = templates(
    """
    <n>.add_(<n~>)
    <n>.sub_(<n~>, alpha=2)
    <n>.mul_(<n~>)
    <n>.add_(<k>)
    <n>.mul_(<c>)
    <n>.neg_()
    <n>.clamp_(-2, 3)
    <a>.zero_()
    <n>.fill_(<k>)
    <a>.copy_(<a~>)
    <a>.logical_not_()
    <n>.masked_fill_(<m~>, <k>)
    <n1>[0] = <k>
    <n1>[1:] += <k>
    <n1>[::2] = <0>[::2] * 2
    <n2>[:, 0] += 1
    <n2>[:, 1:] *= -1
    <n2>.t().add_(<n~>)
    <n2>.mT.mul_(2)
    <n1>[-1].copy_(<0>[0])
    <n1>.flatten().add_(1)
    <n1>.view(-1)[0] = <c>
    <n1>.select(<d>, 0).zero_()
    <n2>.diagonal().add_(<k>)
    <n1>.transpose(0, -1)[0].mul_(3)
    <n>.unsqueeze(0).sub_(1)
    <n1>[torch.arange(<0>.size(0)) % 2 == 0] = 0
    <n1>[torch.arange(<0>.size(0)).flip(0)] = <0> * 1
    <n1>.index_fill_(0, torch.zeros(1, dtype=torch.int64), <k>)
    <m>.bitwise_xor_(<m~>)
    <i>.bitwise_or_(<i~>)
    <n>.relu_()
    torch.add(<n>, <n=>, out=<0>)
    """,
    exact="yes",
    results=0,
) + templates(
    """
    <f>.sigmoid_()
    <f>.tanh_()
    <f>.exp_().clamp_(max=5)
    <f>.div_(<f~>.abs() + 1)
    <f>.lerp_(<f~>, 0.3)
    <f>.addcmul_(<f~>, <f~>, value=<c>)
    <f>.sqrt_()
    """,
    results=0,
)

# How often a family is drawn.
FAMILIES = {
    "pointwise": (POINTWISE, 6),
    "discrete": (DISCRETE, 4),
    "cast": (CASTS, 3),
    "reduction": (REDUCTIONS, 4),
    "view": (VIEWS, 7),
    "join": (JOINS, 3),
    "creation": (CREATION, 1),
    "indexing": (INDEXING, 3),
    "matmul": (MATMUL, 2),
    "normalize": (NORMALIZE, 2),
    "window": (WINDOWS, 2),
    "in_place": (IN_PLACE, 4),
}
