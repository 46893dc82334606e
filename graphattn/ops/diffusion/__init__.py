"""Several hops of values by weights of edges, and weights and hops in one."""

__all__ = []
