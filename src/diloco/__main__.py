"""`python -m diloco`, and what torchrun starts: `torchrun --nproc-per-node 4 -m diloco train ...`."""

import sys

from diloco.cli import main

sys.exit(main())
