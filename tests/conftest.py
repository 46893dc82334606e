"""Settings that every test shares."""

import os

# pytest-xdist runs one process per core: their threads must not fight. Set before torch is loaded,
# and inherited by the processes that tests start.
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ.setdefault('MKL_NUM_THREADS', '1')
