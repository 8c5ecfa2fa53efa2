"""Operators that move values, pick them by indices or write in place, by family."""

from templates import templates

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
) + templates(
    """
    <a2>.as_strided((2,), (1,))
    <a2>.as_strided((2, 2), (2, 1), 1)
    <a1>.as_strided(<0>.shape, <0>.stride())
    <a2>.as_strided((<0>.size(0),), (<0>.stride(0) + <0>.stride(1),))
    <a2>.diagonal(-1, <d>, 0)
    <a3>.diagonal(0, 0, 2)
    <a1>[1::2]
    <a1>[-2:]
    <a1>[:-2:3]
    <a2>[1:, ::2]
    <a2>[-1:, :-1]
    <a2>[::2].transpose(0, 1)
    <a2>[None, :, None, 0]
    <a2>.t()[1:]
    <a1>.narrow(<d>, -1, 1)
    <a1>.unfold(<d>, 1, 2)
    <a2>.unfold(0, 2, 2).transpose(0, -1)
    <a1>.unflatten(0, (1, -1))
    <a1>.unflatten(-1, (-1, 1))
    <a>.squeeze((0,))
    <a>.expand(3, *<0>.shape)
    <a>.expand(0, *<0>.shape)
    <a1>[:1].expand(4, *[-1] * (<0>.dim() - 1))
    <a>.view(-1).view(<0>.shape)
    <a2>.swapaxes(0, -1)
    <a2>.rot90()
    <a1>.tile((2,))
    <a1>.repeat_interleave(torch.tensor([2]), 0)
    <a1>.unbind(0)[-1]
    <a2>.unbind(1)[0]
    <a1>.split(2)[-1]
    <a1>.split(1, <d>)[0]
    <a1>.chunk(3)[0]
    <a1>.narrow_copy(0, 0, 1)
    <a2>.contiguous().flip(0, 1)
    <a2>.roll((1, -1), (0, 1))
    <a2>.fliplr()
    <a2>.tril(-1)
    <a2>.view(-1, 1, <0>.size(-1))
    <a2>.contiguous().view(-1)[::2]
    <a2>.transpose(0, 1).contiguous()
    <a2>.transpose(0, 1).reshape(<0>.shape)
    <a>.view_as(<0>)
    <a1>.expand_as(<a~>).contiguous()
    <f>.float().view(torch.int32)
    <i>.int().view(torch.uint8)
    <m>.view(torch.uint8)
    <a1>[..., None, :].expand(*<0>.shape[:-1], 2, -1).flatten(-2)
    <a1>[:0]
    torch.real(<a>)
    """,
    exact="yes",
) + templates(
    """
    <a1>.split([1, <0>.size(0) - 1])
    <a2>.hsplit(2)
    <a1>.chunk(2, <d>)
    <a1>[:2].unbind(0)
    torch.meshgrid(<a1>.flatten(), <a1>.flatten(), indexing="ij")
    torch.aminmax(<n>, dim=<d>)
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
) + templates(
    """
    torch.cat([<a1>, <a=>, <a=>], <d>)
    torch.cat([<a1>[:0], <0>])
    torch.cat([<a1>[1:], <0>[:1]])
    torch.cat((<a2>, <0>.flip(1)), 1)[:, 1:-1]
    torch.stack([<a>, <0> * 2, <a=>], <e>)
    torch.vstack([<a1>, <a=>])
    torch.column_stack([<a1>, <a=>])
    torch.block_diag(<a2>[:, :].flatten(1), <0>.flatten(1))
    F.pad(<n2>, (-1, 2, 1, -1))
    F.pad(<i1>, (2, 1), value=<k>)
    F.pad(<f3>[None], (1, 0, 0, 1), mode="reflect")
    F.pad(<f3>[None], (2, 1, 1, 2), mode="replicate")
    F.pad(<f3>[None], (1, 1, 0, 1), mode="circular")
    torch.cartesian_prod(<a1>.flatten()[:3], <0>.flatten()[:2])
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
) + templates(
    """
    torch.empty_like(<a>).fill_(<k>)
    torch.empty(<a1>.shape[0], 2).zero_()
    torch.arange(<a1>.shape[0] - 1, -1, -1)
    torch.arange(0, <a1>.shape[-1], 3)
    torch.arange(5, dtype=<T>)
    torch.tril_indices(<a1>.shape[0], 2)
    torch.ones_like(<a>, dtype=<I>)
    torch.full((), <k>)
    torch.full((0, <a1>.shape[0]), <c>)
    torch.zeros(<a1>.shape[0], 1, dtype=torch.bool)
    torch.tensor([<k>, <k>])
    torch.scalar_tensor(<c>)
    <a>.new_empty(<0>.shape).fill_(<k>)
    <a>.new_tensor([<k>, <k>])
    """,
    exact="yes",
) + templates(
    """
    torch.hann_window(5)
    torch.logspace(0, 1, 4)
    torch.vander(<f1>.flatten()[:4].float())
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
    <n1>.contiguous().slice_scatter(<0>[1:], 0, 0, -1)
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
) + templates(
    """
    <a1>[(<i> % <0>.size(0)).long() - <0>.size(0)]
    <a1>[torch.tensor([0, -1, 0])]
    <a2>[torch.tensor([0, -1]), torch.tensor([-1, 0])]
    <a2>[:, torch.tensor([-1, 0, -1])]
    <a2>[torch.tensor([[0], [-1]]), torch.tensor([0, -1])]
    <a3>[torch.tensor([0, -1]), :, torch.tensor([-1, 0])]
    <a2>[None, torch.tensor([0, -1])]
    <a2>[..., torch.tensor([0, -1])]
    <a2>[1:, torch.tensor([0, -1])]
    <a1>[torch.tensor([], dtype=torch.int64)]
    <a1>[torch.tensor(-1)]
    <a1>[torch.tensor([True, False])[:<0>.size(0)]] if <0>.size(0) == 2 else <0> * 2
    <a1>[<m=>].sum(0)
    torch.masked_select(<a>, <m=>)
    <a1>.nonzero()
    torch.argwhere(<m1>)
    torch.gather(<a1>, 0, <0>.argsort(0, stable=True))
    torch.gather(<a2>, 1, (torch.arange(<0>.size(0))[:, None] % <0>.size(1)).expand(*<0>.shape[:2]).reshape(*<0>.shape[:2], *[1] * (<0>.dim() - 2)).expand_as(<0>))
    torch.take(<a1>, torch.tensor([0, -1, 0]))
    torch.index_select(<a1>, <d>, torch.tensor([0, 0]))
    F.embedding(torch.tensor([[0, 1], [1, 1]]), <f2>[:2].flatten(1), padding_idx=0)
    <n1>.index_put((torch.tensor([-1]),), <0>[0])
    <n1>.index_put((torch.tensor([0]),), <n1>.new_tensor(2).to(<0>.dtype))
    <n2>.index_put((torch.tensor([0, -1]), torch.tensor([0, -1])), <0>.new_ones(()))
    <n1>.index_put((<m=>,), <0>.new_ones(()))
    <n1>.index_fill(<d>, torch.tensor([0, -1]), <k>)
    <n1>.index_copy(<d>, torch.tensor([0]), <0>.narrow(<d>, 0, 1))
    <n1>.scatter(0, (torch.arange(<0>.size(0)).flip(0)).view(-1, *[1] * (<0>.dim() - 1)).expand_as(<0>), <0>)
    <n1>.scatter(-1, torch.zeros_like(<0>, dtype=torch.int64)[..., :1], <0>)
    <n1>.scatter_reduce(0, torch.zeros_like(<0>, dtype=torch.int64), <0>, "amin", include_self=<t>)
    <n1>.index_reduce(0, torch.zeros(<0>.size(0), dtype=torch.int64), <0>, "amax")
    <n1>.put(torch.tensor([0, -1]), torch.ones(2).to(<0>.dtype))
    <n1>.as_strided_scatter(<0>.new_ones(2), (2,), (1,))
    <n2>.diagonal_scatter(<0>.diagonal(1) * 2, 1)
    <n2>.contiguous().slice_scatter(<0>[:, ::2] * 2, 1, 0, None, 2)
    <n2>.contiguous().select_scatter(<0>[:, -1] + 1, 1, 0)
    <n1>.masked_scatter(<m~>, <0>)
    torch.searchsorted(<N1>.flatten().sort()[0], <0>)
    torch.where(<m1>)[0]
    torch.tril(torch.ones(<a1>.size(0), <0>.size(-1), dtype=torch.bool)).any(0)
    """,
    exact="yes",
) + templates(
    """
    <n1>.index_add(<d>, torch.tensor([0]), <0>.narrow(<d>, 0, 1))
    <n1>.index_add(0, torch.arange(<0>.size(0)) // 2, <0>, alpha=<k>)
    <n1>.index_put((torch.tensor([0, -1, 0]),), <0>[:1], accumulate=True)
    <n2>.index_put((torch.tensor([0, -1, 0]), torch.tensor([-1, 0, -1])), <0>[0, 0], accumulate=True)
    <n2>.index_put((torch.arange(<0>.size(0)), torch.tensor([0])), <0>[:, 0], accumulate=True)
    <n1>.scatter_add(0, (torch.arange(<0>.size(0)) % 2).view(-1, *[1] * (<0>.dim() - 1)).expand_as(<0>), <0>)
    <n1>.scatter_add(-1, torch.zeros_like(<0>, dtype=torch.int64), <0>)
    <n1>.scatter_reduce(0, torch.zeros_like(<0>, dtype=torch.int64), <0>, "sum", include_self=<t>)
    <n1>.put(torch.tensor([0, -1, 0]), torch.ones(3).to(<0>.dtype), accumulate=True)
    F.embedding_bag(torch.tensor([[0, 1], [1, 1]]), <f2>[:2].flatten(1), mode="sum")
    torch.zeros(3).index_add(0, (<i1>.flatten() % 3).long(), <0>.flatten().float())
    torch.zeros(2, 3).index_put(((<i1>.flatten() % 2).long(), (<0>.flatten() % 3).long() - 3), <0>.flatten().float(), accumulate=True)
    torch.histc(<F>.float(), 4, -2, 2)
    """,
    exact="sum",
) + templates(
    """
    <f1>.scatter_reduce(0, torch.zeros_like(<0>, dtype=torch.int64), <0>, "mean", include_self=<t>)
    <f1>.scatter_reduce(0, torch.zeros_like(<0>, dtype=torch.int64), <0>, "prod", include_self=<t>)
    <f1>.index_reduce(0, torch.zeros(<0>.size(0), dtype=torch.int64), <0>, "mean")
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
) + templates(
    """
    <n2>.as_strided((2,), (<0>.stride(0) + <0>.stride(1),)).add_(1)
    <n1>.as_strided((2,), (1,)).mul_(3)
    <n1>[1:].copy_(<0>[:-1].clone())
    <n1>[1:] = <0>[:-1] + 1
    <n2>[:, 1:].copy_(<0>[:, :-1].flip(1))
    <n2>[..., ::2].add_(<0>[..., ::2])
    <n2>[0, 1:] = <0>[0, :-1].clone()
    <n2>[1:, :-1] *= 2
    <n3>[:, 0].mul_(2)
    <n3>[..., 0, 1:].t().fill_(<k>)
    <n2>[[0, -1]] = 0
    <n2>[:, [0, -1]] = <k>
    <n2>[[0, -1], [-1, 0]] = <k>
    <n2>[torch.tensor([0, -1])] *= 2
    <n1>[<m=>] = <k>
    <n1>[<0> > 0] *= -1
    <n1>[<0> > 0] = <0>[<0> > 0] + 1
    <n1>[<m~>] = 0
    <n2>[<0>[:, 0] > 0] = 1
    <n1>[None, 1:] = 2
    <n1>[...] = <n~>
    <n1>[()] = <k>
    <a2>[:].copy_(<a~>)
    <n2>.fill_diagonal_(<k>)
    <n2>.tril_()
    <n2>.triu_(1)
    <n2>.diagonal(1).copy_(<0>.diagonal(1) * 2)
    <n2>.diagonal(0, 1, 0).zero_()
    <n2>.t()[1:].add_(<k>)
    <n2>.transpose(0, 1)[::2].mul_(2)
    <n1>.index_copy_(0, torch.tensor([-1]), <0>[:1] * 2)
    <n1>.index_fill_(<d>, torch.tensor([-1]), <k>)
    <n1>.index_put_((torch.tensor([-1]),), <0>[0] * 2)
    <n1>.scatter_(0, torch.zeros_like(<0>[:1], dtype=torch.int64), <k>)
    <n1>.scatter_(-1, torch.zeros_like(<0>[..., :1], dtype=torch.int64), <0>.flip(-1))
    <n1>.masked_scatter_(<0> > 0, <0> * 2)
    <n2>.transpose_(0, 1)
    <n2>.t_()
    <n1>.squeeze_()
    <n1>.unsqueeze_(0)
    <n2>.swapaxes_(0, -1)
    <n1>.unbind(0)[0].add_(2)
    <n1>.split(1)[-1].mul_(2)
    <n1>.unfold(0, 1, 2).add_(1)
    <n1>.expand(1, *<0>.shape).add_(1)
    <n1>[:1].expand_as(<0>[:1]).mul_(2)
    <n>.view_as(<0>).add_(<k>)
    <n>.detach().add_(1)
    <n>.data.mul_(2)
    <n>.clamp_min_(<k>)
    <n>.abs_()
    <n>.square_()
    <n>.copy_(<n~>.flip(0)) if <0>.dim() else <0>
    <i>.remainder_(3)
    <i>.bitwise_and_(<i~>)
    <i>.floor_divide_(2)
    <i>.mul_(<m~>)
    <m>.logical_and_(<m~>)
    <m>.fill_(True)
    <n2>[:, 0], <0>[:, 1] = <0>[:, 1].clone(), <0>[:, 0].clone()
    torch.mul(<n>, 2, out=<0>)
    torch.cat([<n1>[:1], <0>[1:]], out=torch.empty(0, dtype=<0>.dtype)).add_(1)
    torch._foreach_add_([<n>, <0>], 1)
    """,
    exact="yes",
    results=0,
) + templates(
    """
    <n1>.index_add_(0, torch.arange(<0>.size(0)) // 2, <0>.clone())
    <n1>.index_put_((torch.tensor([0, -1, 0]),), <0>[:1].clone(), accumulate=True)
    <n1>.scatter_add_(0, torch.zeros_like(<0>, dtype=torch.int64), <0>.clone())
    <n1>.cumsum_(0)
    <n2>.addmm_(<n2>.detach()[:, :1], <0>[:1].detach().clone()) if <0>.dim() == 2 else <0>
    """,
    exact="sum",
    results=0,
) + templates(
    """
    <f>.mul_(0.5).sigmoid_()
    <f>.pow_(2)
    <f1>[1:].exp_().clamp_(max=4)
    <f2>[:, ::2].tanh_()
    <f2>.diagonal().sigmoid_()
    <f>.erf_()
    F.relu(<f>, inplace=True)
    F.silu(<f>, inplace=True)
    F.dropout(<f>, 0.0, inplace=True)
    F.leaky_relu_(<f>, 0.2)
    """,
    results=0,
)
