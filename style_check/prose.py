"""What people read of a file: its text with the code masked. An offset is the same place in both."""

import re
from collections.abc import Callable

#: Stands for code: ends a sentence, and is part of no word.
CODE = "\0"
_STRING = r'"(?:[^\\"\n]|\\.)*"'
_SINGLE = r"'(?:[^\\'\n]|\\.)*'"
_HASH = r"(?<![^\s;(])\#[^\n]*"
_PYTHON = re.compile(
    rf'"""(?:[^\\"]|\\.|"(?!""))*"""|\'\'\'(?:[^\\\']|\\.|\'(?!\'\'))*\'\'\'|{_STRING}|{_SINGLE}|\#[^\n]*', re.DOTALL
)
_C = re.compile(rf"//[^\n]*|/\*.*?\*/|{_STRING}|{_SINGLE}", re.DOTALL)
_JAVASCRIPT = re.compile(rf"//[^\n]*|/\*.*?\*/|{_STRING}|{_SINGLE}|`(?:[^\\`]|\\.)*`", re.DOTALL)
_SHELL = re.compile(rf"{_HASH}|{_STRING}|{_SINGLE}", re.DOTALL)
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<!--|-->|</?[a-zA-Z!][^>]*>", re.DOTALL)
_SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script>", re.DOTALL)
_READ_ATTRIBUTE = re.compile(r"\b(?:title|alt|placeholder|aria-label|content)=\"([^\"]*)\"")
_FENCE = re.compile(r"^([ ]*)(```+|~~~+)[ ]*(\w*)[^\n]*\n(.*?)(?:^\1\2[ ]*$|\Z)", re.DOTALL | re.MULTILINE)
_MARKUP = re.compile(r"<!--.*?-->|\]\([^)\s]*\)|^\[[^\]]+\]:[^\n]*|^[ ]*\|?[-:| ]+\|?[ ]*$", re.DOTALL | re.MULTILINE)
_BLOCK_START = re.compile(r"^[ ]*(?:#+|[-*+]|\d+\.)[ ]|\|", re.MULTILINE)
_HEADING_END = re.compile(r"^(#+[^\n]*)\n", re.MULTILINE)
_YAML_KEY = re.compile(r"^[ -]*[\w./-]+:(?=\s)|\{\{.*?\}\}|^[ ]*- ", re.MULTILINE)

_PLACEHOLDER = re.compile(r"\$?\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
_TWO_WORDS = re.compile(r"[A-Za-z]{2,}[,;:]?\s+[A-Za-z]{2,}")
_SQL = re.compile(r"\W*(?:SELECT|CREATE|INSERT|WITH|ALTER|DROP|FROM|COPY)\b")
_QUOTES = re.compile(r"^(?:\"\"\"|'''|[\"'`])|(?:\"\"\"|'''|[\"'`])$|\\.")
_MARKS = re.compile(r"^(?:#[:!]?|//+|/\*+)|\*+/$|(?<=\n)[ \t]*\*(?=\s)")
_FENCES_OF_OUTPUT = ("", "text", "console")


def reader(path: str) -> Callable[[str], str] | None:
    """The function that masks the code of a file of that name; None for a kind whose text is not read."""
    name = path.rpartition("/")[2]
    return _READERS.get(name[name.rfind(".") :] if "." in name[1:] else name)


def _literals(tokens: re.Pattern[str]) -> Callable[[str], str]:
    """A reader of comments and strings, joined where only white space is between two of a kind."""

    def read_literals(source: str) -> str:
        parts: list[str] = []
        end, before = 0, ""
        for token in tokens.finditer(source):
            gap, text = source[end : token.start()], token.group()
            comment = text[0] in "#/"
            prefix = re.search(r"\b[rbfuRBFU]{1,2}$", gap)
            if prefix and not comment:
                gap = gap[: prefix.start()] + " " * len(prefix.group())
            joined = before == ("comment" if comment else "string") and not gap.strip() and gap.count("\n") < 2
            parts.append(gap if joined else _mask(gap))
            if comment:
                parts.append(_MARKS.sub(_blank, text))
            elif prefix and prefix.group().lower() in ("r", "b", "rb", "br") and not text.startswith('"""'):
                parts.append(_mask(text))
            else:
                parts.append(_string(text))
            end, before = token.end(), "comment" if comment else "string"
        return _drop_short("".join(parts) + _mask(source[end:]), source)

    return read_literals


def _string(text: str) -> str:
    """A literal as text: without quotes and escapes; a placeholder counts as a word."""
    return _PLACEHOLDER.sub(lambda found: "x" * len(found.group()), _QUOTES.sub(_blank, text))


def _drop_short(masked: str, source: str) -> str:
    """Leave out literals of one word, and SQL: they are code."""
    return re.sub(
        rf"[^{CODE}]+",
        lambda found: (
            found.group()
            if source[found.start()] in "#/" or (_TWO_WORDS.search(found.group()) and not _SQL.match(found.group()))
            else _mask(found.group())
        ),
        masked,
    )


def _yaml(source: str) -> str:
    return re.sub(r"^(\s*)#", r"\1 ", _YAML_KEY.sub(_mask_found, source), flags=re.MULTILINE)


def _html(source: str) -> str:
    text = list(_TAG.sub(_mask_found, source))
    for found in _READ_ATTRIBUTE.finditer(source):
        text[found.start(1) : found.end(1)] = found.group(1)
    for found in _SCRIPT.finditer(source):
        text[found.start(1) : found.end(1)] = _READERS[".js"](found.group(1))
    return "".join(text)


def _markdown(source: str) -> str:
    def fence(found: re.Match[str]) -> str:
        if found.group(3) not in _FENCES_OF_OUTPUT:
            return _mask(found.group())
        # Output has lines, not sentences.
        return _mask(found.group()[: found.start(4) - found.start()]) + "".join(
            CODE if character == "\n" else character for character in found.group()[found.start(4) - found.start() :]
        )

    text = _FENCE.sub(fence, source)
    text = _HEADING_END.sub(lambda found: found.group(1) + CODE, text)
    return _BLOCK_START.sub(_mask_found, _MARKUP.sub(_blank, text))


def _mask(text: str) -> str:
    return CODE * len(text)


def _mask_found(found: re.Match[str]) -> str:
    return _mask(found.group())


def _blank(found: re.Match[str]) -> str:
    """White space of the same length, with its lines."""
    return re.sub(r"[^\n]", " ", found.group())


_READERS: dict[str, Callable[[str], str]] = {
    ".md": _markdown,
    ".html": _html,
    ".js": _literals(_JAVASCRIPT),
    **dict.fromkeys((".py", ".pyi"), _literals(_PYTHON)),
    **dict.fromkeys((".c", ".h", ".proto", ".css"), _literals(_C)),
    **dict.fromkeys((".yml", ".yaml"), _yaml),
    **dict.fromkeys(
        (".sh", ".sbatch", ".pbs", ".service", ".default", ".toml", ".sysusers", "Makefile", "Dockerfile", "run"),
        _literals(_SHELL),
    ),
}
