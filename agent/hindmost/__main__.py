"""``python -m hindmost``."""

import sys

from hindmost.cli import main

sys.exit(main())
