"""Rules of wording, from ``.vale.ini`` and the styles that it names; and where each finds something in a text."""

from __future__ import annotations

import configparser
import fnmatch
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    #: A text to (offset, message) of each finding.
    Find = Callable[[str], Iterator[tuple[int, str]]]

#: Where a sentence ends, and where a paragraph or a masked part ends one.
_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)[.!?][\"')\]*]*(?=\s|\0|$)|\n\s*\n|\0")


@dataclass(frozen=True)
class Rules:
    """What ``.vale.ini`` asks for."""

    finds: dict[str, Find]
    """Style and rule, as ``Hindmost.Words``, to its function."""
    code: re.Pattern[str]
    """Parts of a text that name code."""
    sections: tuple[tuple[str, dict[str, str]], ...]
    """Pattern of paths and the settings for them; a later one overrides."""

    def applying(self, path: str) -> list[str]:
        """Names of the rules that apply to a file, given relative to the repository."""
        settings: dict[str, str] = {}
        for pattern, section in self.sections:
            if _matches(path, pattern):
                settings |= section
        styles = [style.strip() for style in settings.get("basedonstyles", "").split(",")]
        return [
            name
            for name in self.finds
            if name.partition(".")[0] in styles and settings.get(name.lower(), "YES").upper() != "NO"
        ]

    def findings(self, text: str, names: list[str]) -> list[tuple[int, str]]:
        """Offset and message of each finding in a text whose code is masked by `prose.read`."""
        text = self.code.sub(lambda found: "x" * len(found.group()), text)
        return sorted((at, f"{message} ({name})") for name in names for at, message in self.finds[name](text))


def load(root: Path) -> Rules:
    """The rules of a repository. Raises ValueError for a style that this checker does not know, naming the file."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string("[.]\n" + (root / ".vale.ini").read_text(encoding="utf-8"))
    general = parser["."]
    finds = {
        f"{file.parent.name}.{file.stem}": _find(file)
        for file in sorted((root / general["stylespath"]).glob("*/*.yml"))
    }
    ignored = re.compile("|".join(part[1:-1] for part in re.split(r",\s+(?=\()", general["tokenignores"])))
    return Rules(finds, ignored, tuple((name, dict(parser[name])) for name in parser.sections() if name != "."))


def _matches(path: str, pattern: str) -> bool:
    """Whether a section of ``.vale.ini`` covers a path; its stars cross folders."""
    return fnmatch.fnmatchcase(path, pattern.replace("**", "*"))


def _find(file: Path) -> Find:
    rule = yaml.safe_load(file.read_text(encoding="utf-8"))
    kind = rule["extends"]
    if kind not in _KINDS:
        raise ValueError(f"{file}: extends {kind!r}; this checker knows {', '.join(_KINDS)}")
    return _KINDS[kind](rule)


def _existence(rule: dict[str, object]) -> Find:
    tokens = rule["tokens"]
    assert isinstance(tokens, list)
    words, message = _any_of(tokens, rule), str(rule["message"])

    def find(text: str) -> Iterator[tuple[int, str]]:
        for found in words.finditer(text):
            yield found.start(), message.replace("%s", _plain(found.group()))

    return find


def _substitution(rule: dict[str, object]) -> Find:
    swap = rule["swap"]
    assert isinstance(swap, dict)
    words, message = _any_of(swap, rule), str(rule["message"])
    each = [(_any_of([old], rule), str(new)) for old, new in swap.items()]

    def find(text: str) -> Iterator[tuple[int, str]]:
        for found in words.finditer(text):
            new = next(new for old, new in each if old.match(text, found.start()))
            yield found.start(), message.replace("%[1]s", new).replace("%[2]s", _plain(found.group()))

    return find


def _occurrence(rule: dict[str, object]) -> Find:
    token, most, message = re.compile(str(rule["token"])), int(str(rule["max"])), str(rule["message"])

    def find(text: str) -> Iterator[tuple[int, str]]:
        for start, sentence in sentences(text):
            if len(token.findall(sentence)) > most:
                yield start, message

    return find


_KINDS = {"existence": _existence, "substitution": _substitution, "occurrence": _occurrence}


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Offset and text of each sentence, without what separates them."""
    start = 0
    for end in [*_SENTENCE_END.finditer(text), None]:
        stop = end.start() if end else len(text)
        sentence = text[start:stop]
        if sentence.strip():
            yield start + len(sentence) - len(sentence.lstrip()), sentence.strip()
        start = end.end() if end else stop


def _any_of(patterns: object, rule: dict[str, object]) -> re.Pattern[str]:
    """Any of the patterns as whole words; a space in one is any white space in the text."""
    assert isinstance(patterns, (list, dict))
    together = "|".join(str(pattern).replace(" ", r"\s+") for pattern in patterns)
    return re.compile(rf"\b(?:{together})\b", re.IGNORECASE if rule.get("ignorecase") else 0)


def _plain(text: str) -> str:
    return " ".join(text.split())
