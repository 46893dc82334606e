"""Results of all models, as a table of families."""

import re
from collections import defaultdict
from collections.abc import Iterable

from tests.families.attaching import Result
from tests.families.models import model_classes

REASONS = {
    r'whose attention does not': 'no attention goes through `AttentionInterface`',
    r'must have self-attention': 'only cross-attention goes through it',
    r"'sinks' must be None": 'sinks of queries',
    r"'attention_mask' must (be|have)": 'masks of another length than keys',
    r"'along' must be a pattern": 'own edges in some layers only',
}


def _reason(result: Result) -> str:
    if result.result != 'refused':
        return result.result
    why = next((name for pattern, name in REASONS.items() if re.search(pattern, result.why)),
               result.why)
    return f'refused: {why}'


def _family(name: str) -> str:
    kind = model_classes().get(name)
    return name.partition(' ')[0] if kind is None else kind.__module__.split('.')[-2]


def summary(results: Iterable[Result]) -> str:
    """A table in Markdown: how many classes, and the families of which nothing better came."""
    classes, of_family = defaultdict(list), defaultdict(set)
    for result in results:
        classes[_reason(result)].append(result.name)
        of_family[_family(result.name)].add(_reason(result))
    lines = ['| | classes | families without an equal class |', '|---|---|---|']
    for reason in sorted(classes, key=_rank):
        alone = [family for family, reasons in sorted(of_family.items())
                 if min(reasons, key=_rank) == reason and not reason.startswith('equal')]
        lines.append(f'| {reason} | {len(classes[reason]):,} | {", ".join(alone)} |')
    return '\n'.join(lines)


def counts(results: Iterable[Result]) -> str:
    """A table in Markdown: how many classes and families have each result."""
    classes = {result: [] for result in ('equal', 'refused', 'wrong')}
    for result in results:
        classes.setdefault(result.result, []).append(_family(result.name))
    return '\n'.join(['| | classes | families |', '|---|---|---|', *(
        f'| {result} | {len(found):,} | {len({*found}):,} |'
        for result, found in sorted(classes.items(), key=lambda pair: _rank(pair[0])))])


def _rank(reason: str) -> tuple[int, str]:
    order = ('equal', 'equal, in part', 'wrong', 'refused', 'not taken', 'not attached',
             'not built')
    return order.index(reason.partition(':')[0]), reason
