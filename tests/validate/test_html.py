"""The HTML page: what it says, and that nothing in a report can break out of it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.validate.sample_reports import finding, realistic, report

from attnport.errors import UsageError
from attnport.validate.html import html_from_report, write_html


class Page(HTMLParser):
    """Checks that elements close in order, and gathers text, ids and addresses."""

    VOID = frozenset({"meta", "input", "br", "link", "img", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in {"href", "src", "xlink:href", "action"}:
                self.addresses.append(value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "script"}:
            self.text += data


@pytest.fixture(scope="module")
def failed_page() -> str:
    return html_from_report(realistic("failed"))


def test_page_is_well_formed_and_asks_for_nothing_else(failed_page: str) -> None:
    page = Page(failed_page)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {address[1:] for address in page.addresses} <= set(page.ids)
    assert all(address.startswith("#") for address in page.addresses)
    named = set(re.findall(r"https?://[^\"' )<]+", failed_page))
    assert named <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "@import" not in failed_page
    assert page.tags.count("figure") == 2


@pytest.mark.parametrize(
    ("kind", "verdict", "said"),
    [
        ("proved", "PROVED", "Yes. All 80 requirements passed."),
        ("failed", "FAILED", "No. 2 of 91 requirements failed, and 10 could not be checked."),
        ("not proved", "NOT PROVED", "Not yet. Nothing failed, but 10 of 90"),
    ],
)
def test_verdict_stands_in_words(kind: str, verdict: str, said: str) -> None:
    page = Page(html_from_report(realistic(kind)))
    start = page.text[: page.text.index("By model and dtype")]
    assert f"\n{verdict}\n" in start
    assert said in start


def test_reasons_stand_before_the_table_failed_ones_first(failed_page: str) -> None:
    text = Page(failed_page).text
    start = text[: text.index("By model and dtype")]
    assert start.index("41.2 times the bound") < start.index("no CUDA device")
    assert "10 findings" in start


def test_nothing_required_is_not_known() -> None:
    assert "Not known. Nothing was required" in html_from_report(report(finding(required=False)))


def test_empty_report_is_a_page() -> None:
    assert "holds no findings" in Page(html_from_report(report())).text


def test_what_a_report_says_is_escaped() -> None:
    hostile = '</td></svg><script>alert("$x_1$")</script>--><!-- &amp; ü'
    changes = {"model": hostile, "case": hostile, "message": hostile, "engine": hostile}
    text = html_from_report(report(finding(status="failed", **changes)))
    page = Page(text)
    assert page.open == []
    assert page.tags.count("script") == 1
    assert "alert(" in page.text


def test_same_report_gives_the_same_bytes(failed_page: str) -> None:
    assert html_from_report(realistic("failed")) == failed_page


def test_thousand_findings_stay_light(tmp_path: Path) -> None:
    many = [
        finding(model=f"model-{i % 60}", case=f"case-{i}", numbers={
            "ratio": 0.001 * (i + 1), "error_max": 1e-6, "error_mean": 1e-7, "bound_max": 3e-6,
            "bound_mean": 2e-7, "at": [0, 17, 301], "value": 0.4, "reference": 0.4, "rms": 1.0})
        for i in range(1000)
    ]  # fmt: skip
    write_html(report(*many), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 2 << 20
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_unwritable_place_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_html(report(), tmp_path / "file" / "report.html")
