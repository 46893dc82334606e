"""Published patterns by name."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature

from graphattn._checks import check_bool, check_size, did_you_mean
from graphattn.patterns.base import Pattern
from graphattn.patterns.blocks import Fixed, OverlappingBlocks
from graphattn.patterns.distances import LogSparse, SlidingWindow, Strided
from graphattn.patterns.global_tokens import GlobalTokens, Star
from graphattn.patterns.pruning import Cropped
from graphattn.patterns.random_keys import RandomBlocks, RandomKeys, RandomPairs, RandomRegular


def get(name: str, **parameters: int | bool) -> Pattern:
    """Return a published pattern by its name.

    =================  ==============================  =============================================
    name               parameters (default)            pattern
    =================  ==============================  =============================================
    ``star``                                           ``Star()``
    ``logsparse``      causal (False)                  ``LogSparse(causal)``
    ``strided``        stride, causal (False)          ``Strided(stride, causal)``
    ``fixed``          block, summary (1),             ``Fixed(block, summary, causal)``
                       causal (False)
    ``longformer``     radius, num_global              ``SlidingWindow(radius)
                                                       | GlobalTokens(num_global)``
    ``bigbird``        block (64), num_global (2),     ``OverlappingBlocks(2 * block)
                       num_random (3), the last two    | GlobalTokens(num_global * block)
                       counted in blocks               | RandomBlocks(num_random, block)``
    ``diffuser``       window (64), num_global (64),   ``OverlappingBlocks(window)
                       num_random (64); block (1),     | GlobalTokens(num_global, random=True)
                       uniform (False),                | RandomKeys(num_random)``; see below for
                       cls_global (False)              the variants
    ``diffuser_repo``  window (64), num_global (64),   ``Cropped(OverlappingBlocks(window)
                       num_random (64), size (4,096)   | GlobalTokens(num_global,
                                                       random=True, first=window)
                                                       | RandomPairs(size * num_random), size)``
    ``exphormer``      degree (4), num_virtual (1)     ``GlobalTokens(num_virtual)
                                                       | RandomRegular(degree)``
    =================  ==============================  =============================================

    Variants of ``diffuser``:

    - ``block``: the same numbers of random keys and global tokens are drawn in blocks of adjacent
      tokens, as in Fig. S.8. The random keys are ``RandomBlocks(num_random // block, block)``, so
      all queries of a block have the same keys. ``block=1`` selects single tokens, which the paper
      prefers.
    - ``uniform``: the keys of ``RandomKeys`` are evenly spaced instead of random (Table S.7, #5).
    - ``cls_global``: token 0, which a classifier reads, is always a global token. If tokens are
      drawn in blocks, its whole block is global.

    Differences from the sources:

    - ``longformer``: the source's window is ``2 * radius``. At 128 tokens, SparseBERT's "sliding
      window size" of 2 with two global tokens leaves out 93.1 % of the pairs, but SparseBERT
      reports 88.7 %. A radius larger by three leads to 88.7 %, as in ``SlidingWindow(5) |
      GlobalTokens(2, random=True)``, and so do three more global tokens.
    - ``bigbird``: the window is three blocks wide. ``block=1, num_random=2`` is the token-wise form
      of SparseBERT.
    - ``diffuser``: the window, ``num_random`` keys of each query and ``num_global`` tokens are the
      same at every length, as in the paper. A sequence shorter than any of these three numbers
      raises an error in :meth:`Pattern.build`. A :class:`graphattn.sources.PatternSource` crops the
      shortest possible graph instead, as :meth:`Pattern.build` does with ``crop=True``. In that
      graph every query attends to every key.
    - ``diffuser_repo``: the distribution of the authors' code. The code draws one graph of 4,096
      tokens and crops it, so shorter inputs have fewer random keys and global tokens. The code
      draws 4,096 * num_random pairs out of all pairs, so the number of keys varies between queries.
      No token of the first window, including token 0, is ever global. With the default parameters,
      the densities are about 21, 14, 9 and 6.8 % at 512, 1,024, 2,048 and 4,096 tokens.
    - ``exphormer``: edges like those of Exphormer, of the expander and of the virtual nodes, which
      are the first tokens of each sequence. ``PatternSource('exphormer') | edge_index`` adds the
      edges of the data. Exphormer's expander has each edge in both directions, and its attention
      has an embedding for each type of edge; here the expander is directed, and there are none.

    Args:
        name (str): One of the names above.
        parameters: The parameters of that name.

    Returns:
        Pattern.

    Raises:
        TypeError: A parameter is unknown, missing or of the wrong type.
        ValueError: The name is unknown, or a value is out of range.

    Source: Shi et al., "SparseBERT" (2021), Sec. 4.2; Feng et al., "Diffuser" (2023), Table S.10,
    and its code; Shirzad et al., "Exphormer" (2023), Sec. 3; and the sources of the parts.

    Example:
        >>> from graphattn import patterns
        >>> patterns.get('longformer', radius=256, num_global=1)
        SlidingWindow(radius=256) | GlobalTokens(tokens=1)
        >>> patterns.get('diffuser', num_random=32)
        OverlappingBlocks(width=64) | GlobalTokens(tokens=64, random=True) | RandomKeys(count=32)
    """
    if not isinstance(name, str):
        raise TypeError(f"'name' must be a str (got {type(name).__name__})")
    if name not in PRESETS:
        names = ', '.join(map(repr, PRESETS))
        raise ValueError(f"'name' must be one of {names} (got {name!r})"
                         f"{did_you_mean(name.lower(), PRESETS)}")
    _check_parameters(name, parameters)
    return PRESETS[name](**parameters)


def register(name: str, build: Callable[..., Pattern]) -> None:
    """Register a name of a custom pattern, which :func:`get`, :func:`parse`, sources and config
    files then accept. Pattern classes need no registration, because :func:`parse` finds them by
    class name.

    Args:
        name (str): A Python identifier that is not the name of a preset or pattern.
        build (callable): Function that returns the pattern. Its parameters must be annotated as
            ``int`` or ``bool``.

    Raises:
        TypeError: ``build`` is not callable.
        ValueError: The name is in use, or is not an identifier.

    Example:
        >>> from graphattn import patterns
        >>> def ladder(rungs: int = 8) -> patterns.Pattern:
        ...     return patterns.SlidingWindow(1) | patterns.Strided(rungs)
        >>> patterns.register('ladder', ladder)
        >>> patterns.parse('ladder(rungs=4) & Causal()')
        (SlidingWindow(radius=1) | Strided(stride=4)) & Causal()
    """
    if not isinstance(name, str):
        raise TypeError(f"'name' must be a str (got {type(name).__name__})")
    if not callable(build):
        raise TypeError(f"'build' must be a function that returns a pattern (got "
                        f"{type(build).__name__})")
    if not name.isidentifier():
        raise ValueError(f"'name' must be a Python identifier (got {name!r})")
    if PRESETS.get(name, build) is not build:
        raise ValueError(f"'name' must be a new name, not the name of a preset (got {name!r})")
    PRESETS[name] = build


def _longformer(radius: int, num_global: int) -> Pattern:
    return SlidingWindow(radius) | GlobalTokens(num_global)


def _bigbird(block: int = 64, num_global: int = 2, num_random: int = 3) -> Pattern:
    return (OverlappingBlocks(2 * block) | GlobalTokens(num_global * block)
            | RandomBlocks(num_random, block))


def _diffuser(window: int = 64, num_global: int = 64, num_random: int = 64, block: int = 1,
              uniform: bool = False, cls_global: bool = False) -> Pattern:
    if block < 1:
        raise ValueError(f"'block' must be at least 1 (got {block})")
    if block > 1 and uniform:
        raise ValueError(f"'block' must be 1 with uniform=True, which spaces single tokens evenly "
                         f"(got {block})")
    for name, count in (('num_global', num_global), ('num_random', num_random)):
        if count % block:
            raise ValueError(f"'{name}' must be a multiple of 'block' (got {name}={count} and "
                             f"block={block})")
    if block > 1:
        random_keys = RandomBlocks(num_random // block, block)
    else:
        random_keys = RandomKeys(num_random, 'uniform' if uniform else 'random')
    return OverlappingBlocks(window) | _random_global(num_global, block, cls_global) | random_keys


def _random_global(num_global: int, block: int, cls_global: bool) -> Pattern:
    if not cls_global:
        return GlobalTokens(num_global, random=True, block=block)
    if num_global == 0:
        raise ValueError("'num_global' must be at least 1 with cls_global=True, because token 0 is "
                         "then a global token (got 0)")
    others = GlobalTokens(num_global - block, random=True, first=block, block=block)
    return GlobalTokens(block) | others


def _diffuser_repo(window: int = 64, num_global: int = 64, num_random: int = 64,
                   size: int = 4096) -> Pattern:
    return Cropped(OverlappingBlocks(window)
                   | GlobalTokens(num_global, random=True, first=window)
                   | RandomPairs(size * num_random), size)


def _exphormer(degree: int = 4, num_virtual: int = 1) -> Pattern:
    return GlobalTokens(num_virtual) | RandomRegular(degree)


PRESETS: dict[str, Callable[..., Pattern]] = {
    'star': Star,
    'logsparse': LogSparse,
    'strided': Strided,
    'fixed': Fixed,
    'longformer': _longformer,
    'bigbird': _bigbird,
    'diffuser': _diffuser,
    'diffuser_repo': _diffuser_repo,
    'exphormer': _exphormer,
}


def _check_parameters(name: str, parameters: dict[str, int | bool]) -> None:
    accepted = signature(PRESETS[name]).parameters
    listed = ', '.join(map(repr, accepted)) or 'none'
    for parameter in parameters:
        if parameter not in accepted:
            raise TypeError(f"'{parameter}' is not a parameter of '{name}', which accepts: "
                            f"{listed}{did_you_mean(parameter, accepted)}")
    for parameter, kind in accepted.items():
        if kind.default is Parameter.empty and parameter not in parameters:
            raise TypeError(f"'{parameter}' must be given for the preset '{name}', which accepts: "
                            f"{listed}")
        if kind.annotation in ('int', int) and parameter in parameters:
            check_size(parameter, parameters[parameter])  # the parts use other names
        if kind.annotation in ('bool', bool) and parameter in parameters:
            check_bool(**{parameter: parameters[parameter]})
