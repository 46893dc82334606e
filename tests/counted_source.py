"""A source that counts what it is asked for."""

from graphattn.sources import BlockModelSource


class CountedSource(BlockModelSource):
    def __init__(self, heads, head_channels, clusters):
        super().__init__(heads, head_channels, clusters)
        self.num_graphs = self.num_terms = 0

    def forward(self, *args, **kwargs):
        self.num_graphs += 1
        return super().forward(*args, **kwargs)

    def logit_terms(self, graph):
        self.num_terms += 1
        return super().logit_terms(graph)
