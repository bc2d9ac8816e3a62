"""Weights of low rank from calibrated weights: principal components of what a layer computes, not of its weights.

A linear layer keeps the principal components of its outputs that have a share `energy` of their variance (LiteASR).
The heads of attention keep the dimensions of their scores, q · k, and of what they add to the output. Both are exact at
full rank: means, which no component has to describe, become biases.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

_MIN_VARIANCE = 1e-9
"""Variance of a direction, relative to the largest one, because a covariance with constant directions is singular."""


class Affine(NamedTuple):
    """A linear layer: x @ weight.T + bias."""

    weight: Tensor
    """[outputs, inputs]."""
    bias: Tensor

    @classmethod
    def of(cls, linear: Any) -> Affine:
        """The weights of a linear layer, in float64."""
        weight = linear.weight.double()
        return cls(weight, weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.double())


class Factors(NamedTuple):
    """Weights of a factored linear layer: x @ first.T @ second.T + bias."""

    first: Tensor
    """[rank, inputs]."""
    second: Tensor
    """[outputs, rank]."""
    bias: Tensor


class Moments(NamedTuple):
    """Mean and covariance of rows."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> Moments:
        """Of rows [count, size]: shifted before they are multiplied, so that float32 is enough."""
        mean = rows.mean(0)
        shifted = rows - mean
        return cls(mean.double(), (shifted.T @ shifted).double() / len(rows))


def rank_of(variances: Tensor, energy: float) -> int:
    """Number of the largest variances, [components] in decreasing order, that have a share `energy` of their sum."""
    shares = variances.cumsum(0) / variances.sum()
    return min(int((shares < energy).sum()) + 1, len(variances))


def factor_linear(layer: Affine, inputs: Moments, energy: float) -> Factors | None:
    """Two factors of a linear layer; None if they would need as much work as the layer.

    All outputs count alike, whatever their variance: a residual stream has some outputs with a thousand times the
    variance of the others, which the next normalization scales down.
    """
    covariance = layer.weight @ inputs.covariance @ layer.weight.T
    scale = covariance.diagonal().clamp(min=torch.finfo(covariance.dtype).tiny).sqrt()
    variances, components = torch.linalg.eigh(covariance / scale[:, None] / scale)
    rank = rank_of(variances.clamp(min=0).flip(0), energy)
    if rank * sum(layer.weight.shape) >= layer.weight.numel():
        return None
    basis = components[:, -rank:]
    reader, writer = (basis / scale[:, None]).T, basis * scale[:, None]
    constant = layer.weight @ inputs.mean
    return Factors(reader @ layer.weight, writer, layer.bias + constant - writer @ (reader @ constant))


class HeadFactors(NamedTuple):
    """Projections of attention layers to smaller heads, [heads, size, columns], the most important columns first."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    """[heads, columns, width]: what each column of `value` adds to the output."""
    size: int
    """Number of columns that have the share `energy` of scores and of outputs."""


def factor_heads(projections: tuple[Tensor, Tensor, Tensor], out_weight: Tensor, energy: float) -> HeadFactors:
    """Principal dimensions of each head, from queries (scaled), keys and attended values, [rows, heads, size] each.

    `out_weight`, [width, heads * size], multiplies the attended values. A constant that is added to all keys changes
    all scores of a query alike, which the softmax ignores, so keys count without their mean.
    """
    queries, keys, values = projections
    query_moments = torch.einsum("nhi,nhj->hij", queries, queries).double() / len(queries)
    left, left_inverse = _roots(query_moments)
    right, right_inverse = _roots(_covariances(keys))
    u, scores, vh = torch.linalg.svd(left.mT @ right)
    root, root_inverse = _roots(_covariances(values))
    out_rows = out_weight.T.unflatten(0, queries.shape[1:])
    u_out, outputs, vh_out = torch.linalg.svd(root.mT @ out_rows, full_matrices=False)
    needed = max(rank_of((part**2).sum(0), energy) for part in (scores, outputs))
    scale = scores.sqrt()[:, None]
    return HeadFactors(
        left_inverse @ u * scale,
        right_inverse @ vh.mT * scale,
        root_inverse @ u_out,
        outputs[..., None] * vh_out,
        needed,
    )


def reduce_heads(attention: Any, factors: HeadFactors, size: int, mean: Tensor) -> dict[str, Tensor]:
    """Tensors of a `ReducedAttention` with heads of this size. `mean` is that of the attended values.

    The weights of attention sum to one, so the bias of the values and the mean of what is dropped go to the output.
    """

    def project(layer: Affine, right: Tensor) -> Affine:
        columns, shape = right[..., :size].mT, right.shape[:2]
        weight, bias = layer.weight.unflatten(0, shape), layer.bias.unflatten(0, shape)
        return Affine((columns @ weight).flatten(0, 1), (columns @ bias[..., None]).flatten())

    query = project(Affine.of(attention.q_proj), factors.query * attention.scaling)
    value = project(Affine.of(attention.v_proj), factors.value)
    output, kept = Affine.of(attention.out_proj), factors.output[:, :size].flatten(0, 1).T
    kept_mean = (mean.unflatten(0, (len(factors.value), 1, -1)) @ factors.value[..., :size]).flatten()
    return {
        "q_proj.weight": query.weight,
        "q_proj.bias": query.bias,
        "k_proj.weight": project(Affine.of(attention.k_proj), factors.key).weight,
        "v_proj.weight": value.weight,
        "out_proj.weight": kept,
        "out_proj.bias": output.bias + output.weight @ mean - kept @ (kept_mean - value.bias),
    }


def _covariances(rows: Tensor) -> Tensor:
    """[heads, size, size] of rows [rows, heads, size]."""
    shifted = rows - rows.mean(0)
    return torch.einsum("nhi,nhj->hij", shifted, shifted).double() / len(rows)


def _roots(covariances: Tensor) -> tuple[Tensor, Tensor]:
    """Roots R of covariances, [heads, size, size], so that R @ R.T is the covariance, and the inverses of R.T."""
    variances, axes = torch.linalg.eigh(covariances)
    smallest = _MIN_VARIANCE * variances.amax(-1, keepdim=True) + torch.finfo(variances.dtype).tiny
    deviations = variances.maximum(smallest).sqrt()[:, None]
    return axes * deviations, axes / deviations
