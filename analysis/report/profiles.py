"""The page of a profile, which shows how each head of a model attends."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from analysis.report.sections import Section
from analysis.result import Result
from graphattn import draw

__all__ = ['HeadProfile', 'profile_sections']


@dataclass(frozen=True)
class HeadProfile(Result):
    """Measurements of one attention head of a profile, see
    :class:`graphattn.hugging_face.Profile`."""

    layer: str
    head: int
    keys: float
    edges_90: float
    edges_95: float
    edges_99: float
    first: float
    special: float
    other: float
    near: float
    entropy: float
    rank: float
    same_edges: float
    same_distances: float


def profile_sections(path: str | PathLike) -> list[Section]:
    """Read the profile of a model, and return the sections of its report.

    Args:
        path (str or PathLike): A file that ``Profile.save`` wrote.
    """
    from graphattn.hugging_face import Profile

    profile = Profile.load(path)
    heads = [HeadProfile(**row) for row in profile.as_table()]
    text = (f'{profile!r}. The columns are: the mean number of keys of a row, and of the keys '
            'that together have 90, 95 and 99 % of its weight; the share of the weight on the '
            'first token, on special tokens, on other tokens, and at distances below 8; the '
            'entropy in nats; the effective rank; and the overlap of edges and of distances with '
            'those of the input before.')
    return [Section('Heads', text, {'heads': heads}, draw.profile(profile))]
