"""Attention and diffusion over all pairs in float64, and its gradients, written out by hand.

Nothing of the library is used, nor of automatic differentiation, so that a fault of the reference
is found as well. Heads come first: ``[heads, nodes, channels]``.
"""

import math
from typing import NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]


class Dense(NamedTuple):
    """Attention along the pairs of a mask."""

    query: np.ndarray  # [heads, queries, channels]
    key: np.ndarray  # [heads, keys, channels]
    value: np.ndarray  # [heads, keys, value_channels]
    bias: np.ndarray  # [heads, queries, keys]
    gate: np.ndarray  # as bias
    mask: np.ndarray  # bool [queries, keys]
    scale: float
    teleport: np.ndarray | None  # [hops, heads, queries, 1], None for attention
    to_the_limit: bool  # of infinitely many hops, of the one teleport
    kept: np.ndarray | float  # by which weights are multiplied, as by dropout
    grad_out: np.ndarray  # [heads, queries, value_channels]
    grad_weight: np.ndarray | float  # [heads, queries, keys]

    def logit(self, dtype: type) -> np.ndarray:
        """Rounded to ``dtype`` as the sum of the product and the bias is there; -inf off edges."""
        dot = self.query @ self.key.swapaxes(1, 2) * self.scale * self.gate
        with np.errstate(over='ignore'):
            logit = dot.astype(dtype) + self.bias.astype(dtype)
        return np.where(self.mask, logit.astype(float), -np.inf)

    def below(self, logit: np.ndarray) -> np.ndarray:
        """Return how far each logit is below the highest of its query, 0 where none is finite."""
        high = logit.max(axis=2, keepdims=True, initial=-np.inf)
        with np.errstate(over='ignore'):
            return np.where(high == -np.inf, 0., high) - logit

    def results(self, dtype: type) -> Arrays:
        """Output, weights and all gradients; logits are rounded to ``dtype``."""
        weight = np.exp(-self.below(self.logit(dtype)))
        total = weight.sum(axis=2, keepdims=True)
        return self._results(weight / np.where(total == 0, 1, total), np.subtract)

    def magnitudes(self, dtype: type, is_exact: bool) -> Arrays:
        """The same formulas on absolute numbers, added where the others are subtracted: each
        operation of a result rounds off no more than one eps of its magnitude. An eps of a logit,
        and of its distance to the highest, is that share of its weight; a weight below the
        smallest number may be 0.
        """
        logit = self.logit(dtype)
        below = np.minimum(self.below(logit), 750.)  # exp(-750) is 0
        weight = np.exp(-below)
        weight /= np.maximum(weight.sum(axis=2, keepdims=True), 1)
        absolute = self._replace(**{name: np.abs(getattr(self, name)) for name in (
            'query', 'key', 'value', 'gate', 'grad_out', 'grad_weight')})
        uncertain = 1 + below
        if not is_exact:
            bias = np.where(np.isfinite(self.bias), np.abs(self.bias), 0)
            size = (absolute.query @ absolute.key.swapaxes(1, 2) * self.scale * absolute.gate
                    + bias) * self.mask
            uncertain = uncertain + 2 * size.max(axis=2, keepdims=True, initial=0)
        finfo = np.finfo(dtype)
        return absolute._results(self.mask * weight, np.add,
                                 self.mask * (weight * uncertain + finfo.tiny / finfo.eps))

    def _results(self, alpha: np.ndarray, minus: np.ufunc, magnitude: np.ndarray | None = None
                 ) -> Arrays:
        # The limit exists for the weights themselves, whatever their magnitude.
        contraction, alpha = alpha * self.kept, alpha if magnitude is None else magnitude
        weight = alpha * self.kept
        results = self._hops(weight, contraction, minus)
        grad_alpha = results.pop('grad_weight') * self.kept
        along = np.sum(alpha * grad_alpha, axis=2, keepdims=True)
        grad_logit = alpha * minus(grad_alpha, along)
        grad_dot = grad_logit * self.gate * self.scale
        dot = self.query @ self.key.swapaxes(1, 2) * self.scale
        return {**results, 'weight': weight, 'query': grad_dot @ self.key,
                'key': grad_dot.swapaxes(1, 2) @ self.query, 'edge_bias': grad_logit,
                'edge_gate': grad_logit * dot}

    def _hops(self, weight: np.ndarray, contraction: np.ndarray, minus: np.ufunc) -> Arrays:
        """Output and the gradients of weights, value and teleport."""
        back, value, grad = weight.swapaxes(1, 2), self.value, self.grad_out
        if self.teleport is None:
            return {'out': weight @ value, 'value': back @ grad,
                    'grad_weight': grad @ value.swapaxes(1, 2) + self.grad_weight}
        if self.to_the_limit:
            return self._limit(weight, contraction, minus)
        z = [value]
        for t in self.teleport[::-1]:
            z.append((1 - t) * (weight @ z[-1]) + t * value)
        grad_weight, grad_value, grad_teleport = self.grad_weight, 0., []
        for t, before in zip(self.teleport, z[-2::-1]):
            grad_teleport.append(np.sum(grad * minus(value, weight @ before), 2, keepdims=True))
            grad_value = grad_value + t * grad
            grad_weight = grad_weight + (1 - t) * grad @ before.swapaxes(1, 2)
            grad = back @ ((1 - t) * grad)
        return {'out': z[-1], 'value': grad_value + grad, 'grad_weight': grad_weight,
                'teleport': np.stack(grad_teleport)}

    def _limit(self, weight: np.ndarray, contraction: np.ndarray, minus: np.ufunc) -> Arrays:
        t = self.teleport[0]
        inverse = np.linalg.inv(np.eye(weight.shape[1]) - (1 - t) * contraction)
        z = inverse @ (t * self.value)
        grad = inverse.swapaxes(1, 2) @ self.grad_out
        if minus is np.add:  # an iteration ends by the largest of all numbers
            z, grad = (np.full_like(x, x.max(initial=0)) for x in (z, grad))
        return {'out': z, 'value': t * grad,
                'grad_weight': (1 - t) * grad @ z.swapaxes(1, 2) + self.grad_weight,
                'teleport': np.sum(grad * minus(self.value, weight @ z), 2, keepdims=True)[None]}

    def num_roundings(self) -> float:
        """Return how many operations any result is away from its arguments, at most: sums over
        channels, over the edges of a query and of a key at each hop forth and back, and over what
        shares a bias, a gate or a teleport."""
        heads, num_queries, channels = self.query.shape
        sums = (channels + self.value.shape[2] + heads
                + self.mask.sum(1).max(initial=0) + self.mask.sum(0).max(initial=0) + 16)
        if self.teleport is None:
            return 2 * sums
        hops = 1 / self.teleport.min(initial=1) if self.to_the_limit else len(self.teleport)
        return sums * (hops + 1) + num_queries * math.ceil(hops)
