"""Products, normalizations, losses and windows, by family."""

from templates import templates

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
) + templates(
    """
    torch.mv(<f2>, <f1>)
    torch.dot(<f1>, <0>)
    torch.bmm(<f3>, <0>.mT)
    <f3> @ <0>.mT
    <i2> @ <0>.mT
    torch.mm(<f2>, <0>.t())[1:]
    torch.mm(<f2>.t(), <0>)
    torch.mm(<f2>[:, 1:], <0>[:, 1:].t())
    torch.mm(<f2>[::2], <0>[1::2].t())
    torch.addmv(<f1>, <f2>, <f1>, beta=<k>, alpha=<k>)
    torch.addmm(<f1>, <f2>, <f2>)
    torch.addr(<f2>, <f1>, <f1>)
    torch.kron(<f2>[:2], <f2>[:2])
    torch.einsum("bij,bkj->bik", <f3>, <f=>)
    torch.einsum("ij,ij->i", <f2>, <f=>)
    torch.einsum("ii->i", <f2>[:1, :1])
    torch.linalg.multi_dot([<f2>, <0>.t(), <0>])
    torch.cross(<f2>[:, :1].expand(-1, 3), torch.arange(3.0).to(<0>.dtype).expand(<0>.size(0), 3), dim=1)
    F.linear(<f1>, <f2>, <f1>)
    F.bilinear(<f2>[:, :2], <0>[:, :1], torch.ones(3, 2, 1, dtype=<0>.dtype))
    torch.matmul(<f2>, torch.ones(<0>.size(1), 0, dtype=<0>.dtype))
    torch.matmul(<f2>[:, :0], torch.ones(0, 2, dtype=<0>.dtype))
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
) + templates(
    """
    F.softmax(<f1>.masked_fill(<m~>, -1e4), -1)
    F.softmax(<f2> + torch.full((<0>.size(-1), <0>.size(-1)), -1e4).triu(1)[-1], <d>)
    F.scaled_dot_product_attention(<f3>, <0>, <0>, attn_mask=torch.ones(<0>.size(-2), <0>.size(-2), dtype=torch.bool).tril())
    F.scaled_dot_product_attention(<f3>, <f=>, <f=>, attn_mask=torch.arange(<0>.size(-2)).to(<0>.dtype), scale=0.3)
    F.scaled_dot_product_attention(<f3>[None], <0>[None], <0>[None], is_causal=True)
    F.scaled_dot_product_attention(<f3>[None].transpose(1, 2), <0>[None].transpose(1, 2), <0>[None].transpose(1, 2))
    F.layer_norm(<f1>, <0>.shape[-1:], <f1>.detach().new_ones(<0>.shape[-1:]), <0>.new_zeros(<0>.shape[-1:]))
    F.group_norm(<f3>, <0>.size(1))
    F.batch_norm(<f3>.contiguous(), torch.zeros(<0>.size(1)), torch.ones(<0>.size(1)), training=<t>)
    F.local_response_norm(<f3>, 2)
    F.huber_loss(<f>, <f=>, reduction="none")
    F.cross_entropy(<f2>, torch.full(<0>[:, 0].shape, 1), ignore_index=1, reduction="sum")
    F.cross_entropy(<f2>, torch.zeros(<0>[:, 0].shape, dtype=torch.int64), label_smoothing=0.1)
    F.cross_entropy(<f2>, <f=>.softmax(1), reduction="none")
    F.nll_loss(<f2>.log_softmax(1), torch.zeros(<0>[:, 0].shape, dtype=torch.int64), reduction="none")
    F.gaussian_nll_loss(<f>, <f=>, <f=>.detach().abs() + 0.5)
    F.triplet_margin_loss(<f2>, <f=> + 1, <f=>.flip(0) - 1)
    F.cosine_embedding_loss(<f2>[:, :].flatten(1) + 0.1, <f=>.flatten(1) + 0.2, torch.ones(<0>.size(0)))
    F.margin_ranking_loss(<f1>, <f=>, torch.ones_like(<0>))
    F.soft_margin_loss(<f>, torch.ones_like(<0>))
    F.poisson_nll_loss(<f>, <f=>.detach().abs())
    F.multi_margin_loss(<f2>[:, :].flatten(1), torch.zeros(<0>.size(0), dtype=torch.int64))
    F.multilabel_soft_margin_loss(<f2>, (<f=> > 0).to(<0>.dtype))
    F.pairwise_distance(<f2>, <f=> + 1)
    torch.cdist(<f2>[:, :].flatten(1).float(), <0>.flatten(1).float() + 1)
    F.normalize(<f2>, p=1.0, dim=0)
    torch.logsumexp(<f2> @ <0>.mT, -1)
    F.gumbel_softmax(<f1>, dim=-1) * 0
    F.dropout(<f>, 0.5, training=False)
    F.feature_alpha_dropout(<f2>, 0.5, training=False)
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
) + templates(
    """
    F.avg_pool2d(<f3>, 3, stride=2, padding=1, count_include_pad=False, ceil_mode=<t>)
    F.avg_pool2d(<f3>, 2, divisor_override=3)
    F.avg_pool3d(<f3>[None], 2, 1, 1)
    F.max_pool2d(<f3>, (2, 1), dilation=(1, 2))
    F.max_pool3d(<f3>[None], 2, 1, 1)
    F.max_pool1d(<f2>, 2, 1, 1)
    F.lp_pool2d(<f3>.abs() + 0.1, 2, 2)
    F.adaptive_avg_pool2d(<f3>, (3, 2))
    F.adaptive_max_pool2d(<f3>, 2)
    F.adaptive_avg_pool3d(<f3>[None], (1, 2, 2))
    F.interpolate(<f3>[None], scale_factor=1.5, mode="bilinear")
    F.interpolate(<f3>[None], size=(3, 5), mode="bilinear", align_corners=True)
    F.interpolate(<f3>[None], scale_factor=2, mode="bicubic")
    F.interpolate(<f3>[None], size=(2, 3), mode="area")
    F.interpolate(<f3>[None], size=(4, 3), mode="bilinear", antialias=True)
    F.interpolate(<f3>[None], size=3, mode="nearest-exact")
    F.grid_sample(<f3>[None].float(), torch.linspace(-1.2, 1.1, 12).view(1, 2, 3, 2), align_corners=<t>)
    F.fold(F.unfold(<f3>[None], 2, padding=1), <0>.shape[-2:], 2, padding=1)
    F.unfold(<f3>[None], (1, 2), stride=2)
    F.pixel_shuffle(<f3>[None].expand(4, -1, -1, -1).transpose(0, 1), 2)
    F.channel_shuffle(torch.cat([<f3>, <0>], -3)[None], 2)
    F.conv1d(<f2>[None], torch.ones(2, <0>.size(0), 2, dtype=<0>.dtype), padding=1)
    F.conv2d(<f3>, torch.ones(2, <0>.size(-3), 2, 2, dtype=<0>.dtype), stride=2, padding=1)
    F.conv2d(<f3>.contiguous(memory_format=torch.contiguous_format)[None].to(memory_format=torch.channels_last), torch.ones(2, <0>.size(0), 1, 1, dtype=<0>.dtype))
    F.conv_transpose2d(<f3>, torch.ones(<0>.size(-3), 2, 2, 2, dtype=<0>.dtype), stride=2, output_padding=1)
    F.max_unpool2d(*F.max_pool2d(<f3>[:, :2, :2], 2, return_indices=True), 2)
    """
) + templates(
    """
    F.max_pool2d(<f3>, 2, return_indices=True)
    F.max_pool1d(<f3>, 2, 1, return_indices=True)
    F.adaptive_max_pool1d(<f3>, 2, return_indices=True)
    """,
    results=2,
)
