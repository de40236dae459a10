"""``python -m hindmost``."""

import sys

from hindmost_cli import main

sys.exit(main())
