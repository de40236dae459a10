"""``python -m hindmost``."""

import sys

try:
    from hindmost_cli import main

    code = main()
except KeyboardInterrupt:
    code = 130
exec("")  # noqa: S102 - a Ctrl-C that met an `exec`, as of a data class's import, would end Python by the signal, though caught
sys.exit(code)
