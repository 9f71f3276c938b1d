"""The results document as one self-contained HTML page: from what ``results.json`` holds, and nothing else."""

from __future__ import annotations

from pathlib import Path

from pytest_specdec import report, sweep_report
from pytest_specdec.report import Document


def html(document: Document) -> str:
    """Return the whole report as one page without outside resources."""
    return fill("report.html.j2", document=document)


def fill(template: str, **context: object) -> str:
    """Fill one of our templates, a page that escapes what it is given."""
    # jinja2 is needed once a session, at its end: imported here so that every other run is spared it.
    import jinja2  # noqa: PLC0415
    import markupsafe  # noqa: PLC0415

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = report.number
    environment.filters["percent"] = report.percent
    environment.filters["share"] = report.share
    environment.globals["sparkline"] = lambda rounds: markupsafe.Markup(report.sparkline(rounds))
    environment.globals["drawn"] = lambda sweep: markupsafe.Markup(sweep_report.drawn(sweep))
    environment.globals["sweep_lines"] = sweep_report.lines
    return environment.get_template(template).render(context)
