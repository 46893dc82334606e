"""The page of a profile: how each head of a model attends."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from analysis.report.sections import Section
from analysis.result import Result
from graphattn import draw

__all__ = ['HeadProfile', 'profile_sections']


@dataclass(frozen=True)
class HeadProfile(Result):
    """Measurements of a head (:class:`graphattn.hugging_face.Profile`)."""

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
    """Read a profile, and return the sections of its page.

    Args:
        path (str or PathLike): A file that ``Profile.save`` wrote.
    """
    from graphattn.hugging_face import Profile

    profile = Profile.load(path)
    heads = [HeadProfile(**row) for row in profile.as_table()]
    text = (f'{profile!r}: the mean number of keys of a row, and of those that hold 90, 95 and '
            f'99 % of its weight; the share of the weight on the first token, on special tokens, '
            f'on others, and at distances below 8; entropy in nats; effective rank; and the '
            f'overlap of edges and of distances with the input before.')
    return [Section('Heads', text, {'heads': heads}, draw.profile(profile))]
