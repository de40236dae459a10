"""Found first on PYTHONPATH in a job that ``hindmost run`` started: starts the probe, then the user's sitecustomize.

It runs in whatever Python the job uses, with hindmost installed there or not, before anything else. Nothing in here may
raise, print to stdout, or leave this directory on ``sys.path``.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_HERE)


def _load_package() -> None:
    """Make ``import hindmost`` give the hindmost this file belongs to, without a new entry on ``sys.path``."""
    from importlib.util import module_from_spec, spec_from_file_location

    init = os.path.join(_PACKAGE, "__init__.py")
    spec = spec_from_file_location("hindmost", init, submodule_search_locations=[_PACKAGE])
    if "hindmost" in sys.modules or spec is None or spec.loader is None:
        return
    sys.modules["hindmost"] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["hindmost"]
        raise


def _start_probe() -> None:
    if not os.environ.get("HINDMOST_JOB_ID") or os.environ.get("HINDMOST_PROBE") == "0":
        return
    try:
        _load_package()
        from hindmost import bootstrap

        bootstrap.start()
    except Exception as error:
        sys.stderr.write(f"hindmost: the probe did not start ({error!r}); the job goes on without it\n")


def _run_users_own() -> None:
    """Execute the sitecustomize that Python would have found without us; its errors are the user's, as ever."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != _HERE])
    if spec is None or spec.loader is None:
        return
    sys.modules["sitecustomize"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
_start_probe()
_run_users_own()
