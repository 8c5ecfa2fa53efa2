"""Names in torch's operator database whose operators the server lowers natively."""

SAMPLES = {"float32": 2, "int64": 1, "bool": 1}  # of each operator

LOWERED = frozenset(
    """
    __radd__ __rdiv__ __rmatmul__ __rmod__ __rmul__ __rpow__ __rsub__ _chunk_cat
    _softmax_backward_data _unsafe_masked_index abs acos acosh add addcdiv addcmul addmm addr
    alias_copy all amax amin aminmax any arange argmax argmin as_strided asin asinh atan atan2
    atanh atleast_1d atleast_2d atleast_3d baddbmm bfloat16 block_diag bmm bool
    broadcast_tensors broadcast_to byte cartesian_prod cat ceil char chunk clamp clamp_max
    clamp_min clone column_stack conj conj_physical constant_pad_nd contiguous copysign cos cosh
    count_nonzero cross deg2rad diag diag_embed diagflat diagonal diagonal_copy diff div dot
    double dsplit dstack einsum eq erf erfc exp exp2 expand expand_as expand_copy expm1 eye
    fft.fftshift fft.ifftshift fill flatten flip fliplr flipud float float_power floor
    floor_divide fmax fmin fmod frac full full_like gather ge gradient gt half heaviside hsplit
    hstack hypot inner int isclose isfinite isinf isnan isneginf isposinf isreal kron le lerp
    linalg.cross linalg.diagonal linalg.matrix_power linalg.multi_dot linalg.vecdot linspace log
    log10 log1p log2 log_softmax logaddexp logaddexp2 logical_and logical_not logical_or
    logical_xor logit logspace logsumexp long lt masked_fill matmul max
    max_pool2d_with_indices_backward maximum mean meshgrid
    min minimum mm movedim mul mv nan_to_num nanmean nansum native_dropout_backward
    native_group_norm native_layer_norm ne neg new_full new_ones new_zeros
    nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d
    nn.functional.adaptive_avg_pool3d nn.functional.avg_pool1d nn.functional.avg_pool2d
    nn.functional.adaptive_max_pool1d nn.functional.adaptive_max_pool2d
    nn.functional.adaptive_max_pool3d nn.functional.avg_pool3d nn.functional.binary_cross_entropy
    nn.functional.binary_cross_entropy_with_logits nn.functional.celu
    nn.functional.channel_shuffle nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d
    nn.functional.conv_transpose1d nn.functional.conv_transpose2d nn.functional.conv_transpose3d
    nn.functional.cosine_embedding_loss nn.functional.cross_entropy nn.functional.elu
    nn.functional.embedding nn.functional.gelu nn.functional.glu nn.functional.group_norm
    nn.functional.hardshrink nn.functional.hardsigmoid nn.functional.hardswish
    nn.functional.hardtanh nn.functional.hinge_embedding_loss nn.functional.huber_loss
    nn.functional.interpolate nn.functional.kl_div nn.functional.l1_loss
    nn.functional.layer_norm nn.functional.leaky_relu nn.functional.linear
    nn.functional.linear_cross_entropy nn.functional.local_response_norm
    nn.functional.logsigmoid nn.functional.margin_ranking_loss nn.functional.max_pool1d
    nn.functional.max_pool2d nn.functional.max_pool3d nn.functional.mish nn.functional.mse_loss
    nn.functional.multi_margin_loss nn.functional.multilabel_margin_loss
    nn.functional.multilabel_soft_margin_loss nn.functional.nll_loss nn.functional.pad
    nn.functional.pdist nn.functional.pixel_shuffle nn.functional.pixel_unshuffle
    nn.functional.poisson_nll_loss nn.functional.prelu nn.functional.relu nn.functional.relu6
    nn.functional.rms_norm nn.functional.selu nn.functional.silu nn.functional.smooth_l1_loss
    nn.functional.soft_margin_loss nn.functional.softmin nn.functional.softplus
    nn.functional.softshrink nn.functional.softsign nn.functional.tanhshrink
    nn.functional.threshold nn.functional.unfold nn.functional.upsample_bilinear
    nn.functional.upsample_nearest ones ones_like outer permute permute_copy positive pow prod
    rad2deg ravel real reciprocal remainder repeat repeat_interleave reshape reshape_as
    resolve_conj resolve_neg roll rot90 round rsqrt rsub scalar_tensor select select_scatter sgn
    short sigmoid sign signbit sin sinc sinh slice slice_scatter softmax special.entr
    special.ndtr special.xlog1py split split_with_sizes split_with_sizes_copy sqrt square
    squeeze squeeze_copy stack std std_mean sub sum sum_to_size t t_copy take take_along_dim tan
    tanh tensordot tile to trace transpose transpose_copy trapezoid trapz tril triu true_divide
    trunc unbind unbind_copy unflatten unsafe_chunk unsafe_split unsqueeze unsqueeze_copy var
    var_mean vdot view view_as view_copy vsplit vstack where xlogy zero_ zeros zeros_like
    """.split()
)
