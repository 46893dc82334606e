"""The start of the command ``graphattn``. In a wheel, this package is named ``graphattn_commands``.

In a wheel, the package contains the packages ``experiments`` and ``analysis``, because their names
could clash with other packages in site-packages. In a clone, both packages are at the top.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE if (HERE / 'experiments').is_dir() else HERE.parent.parent


def main() -> None:
    """Run the command ``graphattn`` with the command line of this process.

    The packages ``experiments`` and ``analysis`` are put on the path of this process and of its
    children.
    """
    sys.path.insert(0, str(ROOT))
    others = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join([str(ROOT), *([others] if others else [])])
    from experiments.signals import end_early

    end_early()
    from experiments.cli import main as run

    run()
