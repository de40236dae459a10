"""One file has the version; what cannot read it says the same."""

import re
from pathlib import Path

import pytest
import yaml
from hindmost import __version__
from hindmost_cli import main

ROOT = Path(__file__).parents[2]


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    """``hindmost --version`` is the version of the package."""
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"hindmost {__version__}\n"


def test_the_package_is_built_from_it() -> None:
    """pyproject.toml has no version of its own."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in text
    assert not re.search(r"^version *=", text, re.MULTILINE)


def test_the_citation_has_it() -> None:
    """CITATION.cff is read by machines that build nothing."""
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]) == __version__


def test_the_newest_entry_of_the_changelog_is_it() -> None:
    """A release has an entry with its date."""
    entries = re.findall(r"^## \[(\d[^\]]*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert entries[0] == __version__


def test_images_are_tagged_with_it() -> None:
    """What is deployed names the image of this version."""
    for path in (ROOT / "deploy/kubernetes").glob("*.yaml"):
        assert re.findall(r"image: hindmost:(\S+)", path.read_text(encoding="utf-8")) == [__version__], path.name
