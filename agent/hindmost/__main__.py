"""``python -m hindmost``, and the command ``hindmost``."""

import sys


def main() -> int:
    """Run the command line; the exit code, which is 130 after a Ctrl-C amid its imports, too."""
    try:
        import hindmost_cli  # noqa: PLC0415 - a Ctrl-C meets it more often than anything else

        code = hindmost_cli.main()
    except KeyboardInterrupt:
        code = 130
    # Python remembers a Ctrl-C that passed through an `exec`, as of a data class's import, though it was caught, and
    # would end by the signal; another `exec` makes it forget.
    exec("")  # noqa: S102
    return code


if __name__ == "__main__":
    sys.exit(main())
