"""Embedding of the features of nodes and edges."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphattn._checks import (
    MAX_SIDE,
    check_floating,
    check_integers,
    check_on,
    check_place,
    check_sides,
    check_size,
)
from graphattn._explained import Explained


class FeatureEncoder(nn.Module, Explained):
    """Embed the features of nodes or of edges.

    Args:
        features (int or list of int): Number of real features, which a linear layer embeds; or the
            number of categories of each categorical feature, whose embeddings are added.
        channels (int): Size of the result.
        name (str): Name of ``features`` in error messages.

    Raises:
        TypeError, ValueError: A number is not a positive int.

    Example:
        >>> import torch
        >>> from graphattn.models import FeatureEncoder
        >>> atoms = torch.tensor([[6, 1], [8, 0]])  # element and charge
        >>> FeatureEncoder([100, 3], 16)(atoms).shape
        torch.Size([2, 16])
    """

    def __init__(self, features: int | list[int], channels: int, name: str = 'features'):
        super().__init__()
        check_sides(channels=channels)
        self.features, self.channels = features, channels
        if isinstance(features, list):
            for size in features or [0]:
                check_size(name, size, at_least=1, at_most=MAX_SIDE)
            self.linear = None
            self.embeddings = nn.ModuleList(nn.Embedding(size, channels) for size in features)
        else:
            check_sides(**{name: features})
            self.linear, self.embeddings = nn.Linear(features, channels), None

    def forward(self, x: Tensor, name: str = 'x') -> Tensor:
        """Return the embedding of each node, or of each edge.

        Args:
            x (Tensor): Real features ``[num_nodes, features]``; or categories, int64
                ``[num_nodes, num_categorical]``. If there is only one categorical feature, ``x``
                may be ``[num_nodes]``. For edges, ``num_nodes`` is the number of edges.
            name (str): Name of ``x`` in error messages.

        Returns:
            Tensor ``[num_nodes, channels]``.

        Raises:
            ValueError: ``x`` has another shape, or a category is out of range.
        """
        if self.linear is not None:
            check_floating(**{name: x})
            check_place(name, x, self.linear)
        else:
            check_integers(name, x)
            check_on(name, x, self.embeddings[0].weight.device, 'the layer')
        x = x.unsqueeze(1) if x.dim() == 1 else x
        width = self.features if self.embeddings is None else len(self.features)
        if x.dim() != 2 or x.size(1) != width:
            raise ValueError(f"'{name}' must have {width} columns, one for each feature (got shape "
                             f"{tuple(x.shape)})")
        if self.linear is not None:
            return self.linear(x)
        return torch.stack([self._embedded(x[:, i], i, name) for i in range(width)]).sum(dim=0)

    def _embedded(self, category: Tensor, i: int, name: str) -> Tensor:
        size = self.features[i]
        if category.numel() and not 0 <= int(category.min()) <= int(category.max()) < size:
            raise ValueError(f"column {i} of '{name}' must contain categories from 0 to {size - 1} "
                             f"(got {int(category.min())} to {int(category.max())})")
        return self.embeddings[i](category)

    def extra_repr(self) -> str:
        return f'{self.features}, {self.channels}'
