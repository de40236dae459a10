"""The word check finds what the styles forbid, at its line, and reads no code."""

from pathlib import Path
from textwrap import dedent

import pytest

from style_check import prose, rules
from style_check.__main__ import check


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with three rules, one of each kind, for all its files but those in ``later/``."""
    style = tmp_path / "styles" / "House"
    style.mkdir(parents=True)
    (style / "Words.yml").write_text(
        "extends: substitution\nmessage: \"write '%[1]s' for '%[2]s'\"\nignorecase: true\nswap:\n"
        "  told: reported\n  by itself: alone\n  looks?: evaluation\n"
    )
    (style / "People.yml").write_text("extends: existence\nmessage: \"'%s'\"\nignorecase: true\ntokens:\n  - whoever\n")
    (style / "Long.yml").write_text(
        "extends: occurrence\nmessage: long\nscope: sentence\nmax: 6\ntoken: '\\S*\\w\\S*'\n"
    )
    (tmp_path / ".vale.ini").write_text(
        "StylesPath = styles\nTokenIgnores = (`[^`\\n]+`), (\\w*_\\w+), (--[a-z-]+)\n\n"
        "[*]\nBasedOnStyles = House\nHouse.Long = NO\n\n[*.md]\nHouse.Long = YES\n\n[later/**]\nBasedOnStyles =\n"
    )
    return tmp_path


def findings(tree: Path, name: str, text: str) -> list[str]:
    file = tree / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(dedent(text).lstrip("\n"))
    return check(tree, [name], rules.load(tree))


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.py", "x = 1\n# It is for whoever comes.\n", 2),
        ("a.py", '"""First.\n\nFor whoever comes.\n"""\n', 3),
        ("a.py", 'raise ValueError(\n    f"{rank} is not there: "\n    "ask whoever started it"\n)\n', 3),
        ("a.c", "int a;\n/* One line.\n * For whoever comes. */\n", 3),
        ("a.c", 'warn("nothing to\\n"\n     "whoever reads this");\n', 2),
        ("a.js", "let a;\nnode.textContent = `whoever is ${late} here`; // no\n", 2),
        ("a.html", "<p\n class='whoever'>\n<b>for</b> whoever reads</p>\n", 3),
        ("a.html", '<a href="whoever"\n title="for whoever reads"></a>\n', 2),
        ("a.html", "<script>\nlet whoever = 1; // for whoever reads\n</script>\n", 2),
        ("a.yml", "# Fine.\nwhoever: 1\nsummary: >-\n  for whoever reads\n", 4),
        ("a.sh", "set -e\n# for whoever reads\n", 2),
        ("Makefile", "a: ## build it\n\t@echo 'make: whoever reads this' >&2\n", 2),
        ("a.md", "# Title\n\nFor `it`, whoever\nreads.\n", 3),
        ("a.md", "Output:\n\n```\nrank 1: whoever waits\n```\n", 4),
    ],
)
def test_a_forbidden_word_is_found_once_at_its_line(tree: Path, name: str, text: str, line: int) -> None:
    assert findings(tree, name, text) == [f"{name}:{line}: 'whoever' (House.People)"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "told = whoever(told, by.itself)\n"),
        ("a.py", 'rows["told"], columns["whoever"]\n'),
        ("a.py", "# `told` and last_told are names, as is --told.\n"),
        ("a.py", 'QUERY = "SELECT told AS whoever FROM looks"\n'),
        ("a.py", 'PATTERN = r"whoever (is|was) told"\n'),
        ("a.c", "int told = whoever(1);\n"),
        ("a.js", "const told = `${told} ${whoever}`;\n"),
        ("a.html", "<p class='told'>no</p><style>.told { color: red }</style>\n"),
        ("a.yml", "told:\n  whoever: 1\n"),
        ("a.md", "Call `told()`; see [this](told.md).\n\n```python\ntold = 1\n```\n"),
        ("a.json", '{"a": "whoever reads"}\n'),
    ],
)
def test_code_is_not_read_as_words(tree: Path, name: str, text: str) -> None:
    assert findings(tree, name, text) == []


def test_a_word_with_a_replacement_is_reported_with_it(tree: Path) -> None:
    assert findings(tree, "a.md", "Told\nby\nitself, in two looks.\n") == [
        "a.md:1: write 'reported' for 'Told' (House.Words)",
        "a.md:2: write 'alone' for 'by itself' (House.Words)",
        "a.md:3: write 'evaluation' for 'looks' (House.Words)",
    ]


def test_a_long_sentence_is_found_where_it_starts(tree: Path) -> None:
    text = """
        Short, e.g. this one. This one has more words
        than fit. Short again.

        - an item has at most this
        - and so has the next one

        | a row | of a table | has as many words | as it likes |
    """
    assert findings(tree, "a.md", text) == ["a.md:1: long (House.Long)"]


def test_a_rule_that_is_off_for_a_kind_of_file_finds_nothing_there(tree: Path) -> None:
    assert findings(tree, "a.py", "# This comment has more than those six words.\n") == []


def test_a_section_without_styles_leaves_a_folder_out(tree: Path) -> None:
    assert findings(tree, "later/a.md", "For whoever reads.\n") == []


def test_a_kind_of_rule_that_is_not_known_is_an_error_that_names_the_file(tree: Path) -> None:
    (tree / "styles" / "House" / "Odd.yml").write_text("extends: metric\n")
    with pytest.raises(ValueError, match=r"House/Odd.yml: extends 'metric'"):
        rules.load(tree)


def test_masked_text_has_the_length_of_its_source() -> None:
    for file in sorted(Path(__file__).parents[1].glob("probe/*.py")):
        reader = prose.reader(file.name)
        source = file.read_text(encoding="utf-8")
        assert reader is not None
        assert len(reader(source)) == len(source)


@pytest.mark.parametrize(
    "code",
    [
        "def _held(): ...",
        "class Known: ...",
        "told = 1",
        "def f(_few): ...",
        "class Given: ...",
        "self.untold = 1",
        "for some in (): ...",
    ],
)
def test_a_name_that_says_nothing_is_a_finding_in_the_packages(tree: Path, code: str) -> None:
    """Whatever it names; what is only read is named elsewhere."""
    assert len(findings(tree, "agent/a.py", f"x = {code!r}\n{code}\nprint(told)\n")) == 1
    assert findings(tree, "deploy/a.py", f"{code}\n") == []


@pytest.mark.parametrize(("code", "count"), [("told = 1", 1), ("def test_it(given): ...", 1), ("def known(): ...", 0)])
def test_in_tests_and_benches_helpers_may_say_what_was_known(tree: Path, code: str, count: int) -> None:
    """No variable there is named by a word that is no name at all."""
    assert [len(findings(tree, f"{folder}/a.py", f"{code}\n")) for folder in ("bench", "tests")] == [count, count]


def test_a_variable_of_a_few_lines_may_say_what_was_found(tree: Path) -> None:
    """As ``found`` of a search; only a function or class of that name says too little."""
    assert findings(tree, "agent/a.py", "found = one = known = 1\n") == []
