"""The base class of attention without a graph: projections, heads, and batches without padding."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from graphattn.extension import (
    cache_host_copies,
    check_bool,
    check_features,
    check_generator,
    check_ptr,
    check_sides,
    host_copy,
)


class Baseline(nn.Module, ABC):
    """Base class of baselines: attention that does not attend along the edges of a graph.

    The interface is that of :class:`graphattn.layers.GraphAttention`.

    Sequences are not padded, because some baselines would attend to padding. Instead,
    :meth:`attend` is called once for all sequences of the same length. So the output of a sequence
    does not depend on other sequences.

    Args:
        channels (int): Size of each token, in and out.
        heads (int): Number of attention heads.
        head_channels (int, optional): Size of a head, ``channels / heads`` if omitted.

    Attributes:
        max_length (int, optional): Maximum number of tokens of a sequence; unlimited if ``None``.
        is_random (bool): Whether each pass draws random numbers.
        lin_key (nn.Linear, optional): The projection of the keys; ``None`` if the queries are also
            the keys.
    """

    max_length: int | None = None
    is_random: bool = False

    def __init__(self, channels: int, heads: int, *, head_channels: int | None = None):
        super().__init__()
        check_sides(channels=channels, heads=heads)
        if head_channels is None and channels % heads != 0:
            raise ValueError(f"'channels' must be a multiple of 'heads' (got {channels} channels "
                             f"and {heads} heads); for other sizes, pass 'head_channels'")
        self.channels, self.heads = channels, heads
        self.head_channels = channels // heads if head_channels is None else head_channels
        check_sides(head_channels=self.head_channels)
        inner_channels = heads * self.head_channels
        self.lin_query = nn.Linear(channels, inner_channels)
        self.lin_key = nn.Linear(channels, inner_channels)
        self.lin_value = nn.Linear(channels, inner_channels)
        self.lin_out = nn.Linear(inner_channels, channels)

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, seed: int) -> Tensor:
        """Compute attention within each of several sequences of equal length."""

    def reset_parameters(self) -> None:
        """Initialise all parameters again."""
        for linear in (self.lin_query, self.lin_key, self.lin_value, self.lin_out):
            if linear is not None:
                linear.reset_parameters()

    @cache_host_copies
    def forward(
        self,
        x: Tensor,
        ptr: Tensor,
        *,
        source: None = None,
        graph: None = None,
        generator: torch.Generator | None = None,
        return_graph: bool = False,
    ) -> Tensor | tuple[Tensor, None]:
        """Compute attention within each sequence of a ragged batch."""
        check_features(x, self.channels, self.lin_out)
        check_ptr('ptr', ptr, x.size(0), x.device)
        check_generator(generator)
        for name, given in (('source', source), ('graph', graph)):
            if given is not None:
                raise ValueError(f"'{name}' must be None, because {type(self).__name__} does not "
                                 f"attend along edges (got {type(given).__name__}); omit '{name}'")
        check_bool(return_graph=return_graph)
        lengths = host_copy(ptr).diff().unique().tolist()
        if self.max_length is not None and max(lengths, default=0) > self.max_length:
            raise ValueError(f"'ptr' must mark sequences of at most {self.max_length} tokens, the "
                             f"'max_length' of {type(self).__name__} (got {max(lengths)})")
        out = self._attend_by_length(x, ptr, lengths, self._draw_seed(generator))
        return (out, None) if return_graph else out

    def _draw_seed(self, generator: torch.Generator | None) -> int:
        """Draw one seed for sequences of all lengths, so that no sequence depends on others."""
        if not self.is_random:
            return 0
        device = 'cpu' if generator is None else generator.device
        return int(torch.randint(2**63 - 1, (), generator=generator, device=device))

    def _attend_by_length(self, x: Tensor, ptr: Tensor, lengths: list[int], seed: int) -> Tensor:
        lengths = [n for n in lengths if n > 0]
        if len(lengths) <= 1:
            return self._attend(x.unflatten(0, (-1, *lengths)), seed) if lengths else x
        start, length = ptr[:-1], ptr.diff()
        tokens = [(start[length == n].unsqueeze(1) + torch.arange(n, device=x.device)).flatten()
                  for n in lengths]
        parts = [self._attend(x[of_length].unflatten(0, (-1, n)), seed)
                 for n, of_length in zip(lengths, tokens)]
        return torch.cat(parts)[torch.cat(tokens).argsort()]

    def _attend(self, x: Tensor, seed: int) -> Tensor:
        """Return the outputs of sequences of equal length, ``[num_tokens, channels]``, given their
        tokens ``[num_sequences, length, channels]``."""
        query, key, value = (
            None if linear is None else linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear in (self.lin_query, self.lin_key, self.lin_value))
        out = self.attend(query, query if key is None else key, value, seed)
        return self.lin_out(out.transpose(1, 2).flatten(2)).flatten(0, 1)

    def extra_repr(self) -> str:
        return f'{self.channels}, heads={self.heads}, head_channels={self.head_channels}'
