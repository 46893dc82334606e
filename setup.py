"""Packages of the wheel. All other metadata is in setup.cfg.

A wheel puts no packages called ``experiments`` and ``analysis`` into site-packages: they lie inside
``graphattn_commands``, which the command ``graphattn`` puts on the path. A clone that is installed
with ``--editable`` has them under their own names.
"""

import sys

from setuptools import find_packages, setup

COMMANDS = find_packages(include=['experiments*', 'analysis*'], exclude=['experiments.entry'])
IS_EDITABLE = 'editable_wheel' in sys.argv
prefix = '' if IS_EDITABLE else 'graphattn_commands.'

setup(
    packages=[*find_packages(include=['graphattn*']), 'graphattn_commands',
              *(f'{prefix}{package}' for package in COMMANDS)],
    package_dir={'graphattn_commands': 'experiments/entry', f'{prefix}experiments': 'experiments',
                 f'{prefix}analysis': 'analysis'},
    package_data={'graphattn': ['py.typed'],
                  f'{prefix}experiments': ['configs/**/*.yaml', 'papers/**/*.yaml']},
)
