"""Names in torch's operator database whose operators the server lowers natively."""

SAMPLES = 4  # of each operator and dtype

LOWERED = frozenset(
    """
    abs acos acosh add addmm all amax amin any argmax argmin asin asinh atan atan2 atanh baddbmm
    bitwise_and bitwise_not bitwise_or bitwise_xor bmm cat ceil clamp clone constant_pad_nd cos cosh
    div eq erf erfc exp exp2 expand expm1 fill flip floor floor_divide fmod full_like gather ge gt
    index_select isinf isnan le log log10 log1p log2 log_softmax logical_and logical_not logical_or
    logical_xor lt masked_fill max maximum mean min minimum mm mul narrow ne neg
    nn.functional.adaptive_avg_pool2d nn.functional.avg_pool2d nn.functional.conv1d
    nn.functional.conv2d nn.functional.elu nn.functional.embedding nn.functional.gelu
    nn.functional.group_norm nn.functional.hardsigmoid nn.functional.hardswish
    nn.functional.hardtanh nn.functional.layer_norm nn.functional.leaky_relu nn.functional.linear
    nn.functional.max_pool2d nn.functional.relu nn.functional.silu nn.functional.softplus permute
    pow prod reciprocal remainder repeat reshape round rsqrt rsub select sigmoid sign sin sinh slice
    softmax split sqrt squeeze std sub sum tan tanh transpose tril triu trunc unsqueeze var view
    where
    """.split()
)
