"""Write the generated pages of ``docs/reference``, or with ``--check`` name those that are stale."""

import sys
from pathlib import Path

from docs.generate import command_line, metrics, report_json, settings

REFERENCE = Path(__file__).parents[1] / "reference"
PAGES = {
    "collector-metrics.md": metrics.collector_page,
    "command-line.md": command_line.page,
    "metrics.md": metrics.page,
    "report-json.md": report_json.page,
    "report.schema.json": report_json.schema_page,
    "settings.md": settings.settings_page,
    "thresholds.md": settings.page,
}


def main(arguments: list[str]) -> int:
    """Write all pages; with ``--check`` write none and return 1 where one differs from what would be written."""
    stale = {name: text for name, page in PAGES.items() if (text := page()) != written(name)}
    if "--check" in arguments:
        for name in stale:
            sys.stderr.write(f"docs/reference/{name} is stale: run make reference\n")
        return 1 if stale else 0
    for name, text in stale.items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
    return 0


def written(name: str) -> str | None:
    """A page as it stands; ``None`` where there is none."""
    path = REFERENCE / name
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
