"""Operators of single numbers and reductions, by family."""

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
) + templates(
    """
    torch.lgamma(<f>.abs() + 0.5)
    torch.digamma(<f>.abs() + 0.5)
    torch.exp2(<f>)
    torch.log2(<f>.abs() + 0.5)
    torch.log10(<f>.abs() + 0.5)
    torch.sinh(<f>)
    torch.cosh(<f>)
    torch.tan(<f> * 0.3)
    torch.asin(torch.sin(<f>) * 0.9)
    torch.acos(torch.sin(<f>) * 0.9)
    torch.atanh(torch.tanh(<f>) * 0.9)
    torch.acosh(<f>.abs() + 1.5)
    torch.logit(torch.sigmoid(<f>), eps=1e-3)
    torch.erfc(<f>)
    torch.erfinv(torch.tanh(<f>) * 0.9)
    torch.special.i0e(<f>)
    torch.special.log_ndtr(<f>)
    torch.special.entr(<f>.abs() + 0.1)
    torch.special.xlog1py(<f>, <f~>.abs())
    F.softsign(<f>)
    F.tanhshrink(<f>)
    F.celu(<f>, <p>)
    F.prelu(<f1>, torch.full((1,), <c>, dtype=<0>.dtype))
    torch.deg2rad(<f>)
    torch.logaddexp2(<f>, <f~>)
    torch.float_power(<f>.abs() + 0.5, <c>)
    torch.pow(<f>.abs() + 0.5, <f~>)
    torch.view_as_real(torch.complex(<f>.float(), <f=>.float()))
    (torch.complex(<f>.float(), <f=>.float()) * torch.complex(<0>.float(), <f~>.float())).real
    torch.polar(<f>.float().abs(), <f=>.float()).imag
    (torch.complex(<f>.float(), <f=>.float()).abs() + 1).log()
    torch.fft.rfft(<f1>.float()).abs().square()
    torch.fft.fft(<f1>.float()).real
    """
) + templates(
    """
    torch.clamp(<n>, min=<n~>, max=<n~>)
    torch.clamp(<n>, min=<n~>)
    torch.fmax(<n>, <n~>)
    torch.fmin(<n>, <n~>)
    torch.rsub(<n>, <n~>)
    torch.where(<m>, <k>, <k>)
    torch.where(<m>, <c>, <c>)
    torch.nan_to_num(<f> / <F~>)
    F.hardshrink(<f>)
    F.softshrink(<f>)
    F.relu(<f>, inplace=False) - F.relu(-<0>)
    torch.addcmul(<n>, <n~>, <n~>)
    <a> + <a~>
    <a> * <a~>
    <n> - <n~>
    torch.ldexp(<f>, torch.tensor(2))
    torch.mul(<n>, torch.tensor(<c>))
    torch.add(<n>, torch.tensor(<k>))
    torch.add(<i>, <m~>)
    torch.mul(<m>, <m~>)
    torch.sub(<i>, <i~>, alpha=<k>)
    torch.abs(<i>)
    torch.pow(<i>, 3)
    torch.square(<i>)
    torch.neg(<i>)
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
) + templates(
    """
    torch.isclose(<N>, <N~>)
    torch.lcm(<i>, <i~>)
    torch.floor_divide(<N>, <N~>)
    torch.bitwise_left_shift(<i>, <i~> % 5)
    torch.bitwise_right_shift(<i>, <i~> % 5)
    <i> // <k>
    <i> % <k>
    <i> // (<i~>.abs() + 1)
    <m> | <m~>
    <A> != <A~>
    <A> > <A~>
    torch.isneginf(<f>)
    torch.searchsorted(torch.tensor([-1.0, 0.5, 2.0]), <F>.float(), right=<t>)
    torch.fmod(<N>, <N~>)
    torch.remainder(<k>, <N>)
    torch.bincount((<i1>.flatten() % 4).long(), minlength=4)
    torch.trunc(<F> * 4) // 3
    torch.clamp(<i>, 0, 5).to(torch.uint8) - 3
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
) + templates(
    """
    <a>.to(<T>, copy=True)
    <a>.float()
    <A>.char()
    <A>.short()
    <a>.double().to(<0>.dtype)
    <a>.to(<T>).to(<0>.dtype)
    torch.asarray(<a>).to(<T>)
    torch.tensor(<k>, dtype=<I>) + <a>
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
    """,
    exact="yes",
    results=2,
) + templates(
    """
    torch.var_mean(<f>, <d>)
    """,
    results=2,
) + templates(
    """
    torch.std(<f>, <D>, correction=<p>, keepdim=<t>)
    torch.norm(<f1>, 3, <d>)
    torch.linalg.vector_norm(<f>, 2, dtype=torch.float32)
    torch.nanmean(<f>, <d>)
    torch.prod(<f>)
    torch.quantile(<f1>.float(), 0.5, dim=<d>)
    torch.trapezoid(<f1>, dim=<d>)
    torch.corrcoef(<f2>[:, :].flatten(1))
    torch.renorm(<f2>, 2, 0, 1.0)
    torch.dist(<f>, <f=>)
    torch.logcumsumexp(<f1>.flip(0), 0)
    torch.cumprod(<f1>, <d>).sum(<d>)
    torch.linalg.norm(<f2>, dim=<d>)
    torch.cov(<f1>[None].flatten(1))
    """
) + templates(
    """
    torch.nansum(<n>, <d>)
    torch.trace(<n2>[:, :])
    torch.diff(<n1>, dim=<d>)
    torch.diff(<n1>, n=2, dim=0)
    <n1>.flip(<d>).cumsum(<d>).flip(<d>)
    torch.sum(<m>, <D>)
    torch.sum(<i>, <D>, dtype=torch.int32)
    torch.cumulative_trapezoid(<f1>, dim=<d>)
    """,
    exact="sum",
) + templates(
    """
    torch.median(<N>)
    torch.topk(<N1>, 1)[0]
    torch.topk(<n1>, 1, <d>, largest=<t>)[0]
    torch.kthvalue(<N1>, 1, <d>)[0]
    torch.amax(<N>, <D>, keepdim=<t>) == <0>
    torch.argsort(<N>, <d>, descending=<t>, stable=True)
    torch.msort(<N1>)
    torch.cummax(<i1>, <d>)[1]
    torch.max(<n>, <d>)[0]
    torch.any(<m>)
    torch.argmax(<N>)
    torch.argmin(<n>.flatten(), 0)
    torch.prod(<i>)
    torch.min(<n1>, <d>, keepdim=<t>).values
    """,
    exact="yes",
) + templates(
    """
    torch.cummax(<N>, <d>)
    torch.cummin(<N>, <d>)
    torch.aminmax(<n>, dim=<d>, keepdim=<t>)
    torch.aminmax(<n>)
    torch.sort(<N>, dim=<d>, descending=True, stable=True)
    """,
    exact="yes",
    results=2,
) + templates(
    """
    torch.std_mean(<f>, <d>, keepdim=<t>)
    torch.frexp(<F>)
    """,
    results=2,
)
