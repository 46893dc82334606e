"""Start the command ``graphattn``. In a wheel this is the package ``graphattn_commands``.

There it holds the packages ``experiments`` and ``analysis``, because such names in site-packages
would clash with those of others. In a clone both lie where they are.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE if (HERE / 'experiments').is_dir() else HERE.parent.parent


def main() -> None:
    """Run the command line of this process, with both packages on the path of its children too."""
    sys.path.insert(0, str(ROOT))
    others = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join([str(ROOT), *([others] if others else [])])
    from experiments.cli import main as run

    run()
