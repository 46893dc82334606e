"""Start the command ``graphattn``. In a wheel this is the package ``graphattn_commands``.

There it contains the packages ``experiments`` and ``analysis``, whose names could clash with other
packages in site-packages. In a clone both are at the top.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE if (HERE / 'experiments').is_dir() else HERE.parent.parent


def main() -> None:
    """Run this process's command line, with both packages on its path and on that of its
    children."""
    sys.path.insert(0, str(ROOT))
    others = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join([str(ROOT), *([others] if others else [])])
    from experiments.cli import main as run

    run()
