"""The tests of test_fuzz.py, with bytes that atheris chooses by what they reach in hindmost's code.

    python -m tests.security.guided [-runs=1000] [-seed=1]     # and whatever else libFuzzer takes

Each in a process of its own. Without atheris, which has wheels for some machines only, nothing runs: that is a failure.
"""

import random
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

#: Bytes of an input: one that is too short for what a test draws of it shows nothing.
BYTES = 4096


def one(test: str, options: list[str]) -> None:
    """Run until the budget is spent; a failure ends the process with a traceback."""
    import atheris

    with atheris.instrument_imports(include=["hindmost", "hindmost_agent", "hindmost_collector"]):
        from tests.security import test_fuzz
    with tempfile.TemporaryDirectory() as corpus:
        for seed in range(32):
            Path(corpus, str(seed)).write_bytes(random.Random(seed).randbytes(BYTES))  # noqa: S311 - no secret
        atheris.Setup(["guided", *options, corpus], getattr(test_fuzz, test).hypothesis.fuzz_one_input)
        atheris.Fuzz()


def main(argv: list[str]) -> int:
    """All of them; 1 where one failed."""
    if find_spec("atheris") is None:
        sys.stderr.write("guided: no atheris here: nothing is run\n")
        return 1
    from tests.security import test_fuzz

    tests = [name for name, one in vars(test_fuzz).items() if hasattr(one, "hypothesis")]
    options = [f"-max_len={2 * BYTES}", "-runs=1000", "-seed=1", *argv]
    lines = ([sys.executable, "-m", "tests.security.guided", test, *options] for test in tests)
    return max(bool(subprocess.run(line, check=False).returncode) for line in lines)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].isidentifier():
        one(sys.argv[1], sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
