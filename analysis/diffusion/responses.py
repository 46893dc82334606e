"""Eigenvalues of diffusion as functions of the eigenvalues of the attention."""

from __future__ import annotations

import math

import numpy as np

from analysis.checks import check_count, check_positive, check_probability


def ppr_response(eigenvalue: np.ndarray, teleport: float, hops: int | None = None) -> np.ndarray:
    r"""Map eigenvalues of the attention to eigenvalues of personalised PageRank.

    .. math::
        \tilde\mu = \frac{a}{1 - (1 - a) \mu}, \qquad
        \tilde\lambda = 1 - \tilde\mu = \frac{(1 - a) \lambda}{a + (1 - a) \lambda}
        \quad \text{for } \lambda = 1 - \mu

    For K hops, the recursion of the diffusion replaces this limit. Both maps also hold for complex
    eigenvalues, and for matrices that are not diagonalisable. Large :math:`\lambda` are damped only
    if the eigenvalues are real and K is even or infinite. At a = 0.1 and K = 5, :math:`\lambda = 2`
    becomes 1.51, whereas the limit is 0.947.

    Args:
        eigenvalue: :math:`\mu`, real or complex, of modulus at most 1 and any shape.
        teleport: Probability a of a restart, in (0, 1].
        hops: Number of hops K; infinite if omitted.

    Returns:
        :math:`\tilde\mu`, an array like ``eigenvalue``.

    Source: Diffuser, Eq. S.7, S.10 and Proposition 5.
    """
    check_probability('teleport', teleport)
    eigenvalue = np.asarray(eigenvalue)
    if hops is None:
        return teleport / (1 - (1 - teleport) * eigenvalue)
    check_count('hops', hops, at_least=0)
    response = np.ones_like(eigenvalue, dtype=np.result_type(eigenvalue, float))
    for _ in range(hops):
        response = (1 - teleport) * eigenvalue * response + teleport
    return response


def heat_response(eigenvalue: np.ndarray, time: float, hops: int | None = None) -> np.ndarray:
    r"""Map eigenvalues of the attention to eigenvalues of the heat kernel.

    .. math::
        \tilde\mu = e^{-t (1 - \mu)} = e^{-t \lambda}, \qquad
        \tilde\mu_K = e^{-t} \sum_{k=0}^{K} \frac{(t \mu)^k}{k!}

    The weights of K hops do not sum to 1, because the series is cut off, and they are not rescaled.

    Args:
        eigenvalue: :math:`\mu`, real or complex, of any shape.
        time: t, the mean number of hops, positive.
        hops: Number of hops K; infinite if omitted.

    Returns:
        :math:`\tilde\mu`, an array like ``eigenvalue``.

    Source: Diffuser, Appendix A.
    """
    check_positive('time', time)
    eigenvalue = np.asarray(eigenvalue)
    if hops is None:
        return np.exp(-time * (1 - eigenvalue))
    check_count('hops', hops, at_least=0)
    power = np.ones_like(eigenvalue, dtype=np.result_type(eigenvalue, float))
    response = math.exp(-time) * power
    for hop in range(1, hops + 1):
        power = power * eigenvalue
        # Computed in logarithms, because the factors overflow for large times.
        response = response + math.exp(hop * math.log(time) - time - math.lgamma(hop + 1)) * power
    return response
