"""Data modules. Each file contains one task."""

from experiments.tasks.choices import Choices
from experiments.tasks.digits import Digits
from experiments.tasks.documents import Documents
from experiments.tasks.glue import Glue
from experiments.tasks.images import Images
from experiments.tasks.long_range import LongRange
from experiments.tasks.mlm import MaskedLanguage
from experiments.tasks.own_sequences import ImageFolder, TokenIds
from experiments.tasks.questions import Questions
from experiments.tasks.synthetic import Duplicates, Planted
from experiments.tasks.text import Text
from experiments.tasks.two_hop import TwoHop

__all__ = ['Choices', 'Digits', 'Documents', 'Duplicates', 'Glue', 'ImageFolder', 'Images',
           'LongRange', 'MaskedLanguage', 'Planted', 'Questions', 'Text', 'TokenIds', 'TwoHop']
