"""A real browser for the report: headless Chromium, its screenshot, and what its page measures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
    "--disable-dev-shm-usage", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
# Run in the page after it has loaded; the answer is left in the document, which is then dumped.
_MEASURE = """
addEventListener('load', () => setTimeout(() => {
  const [entry] = performance.getEntriesByType('navigation');
  const bottom = word => {
    const found = document.querySelector(word);
    return found ? found.getBoundingClientRect().bottom : null;
  };
  const answer = document.createElement('pre');
  answer.id = 'measured';
  answer.textContent = JSON.stringify({
    opened_ms: entry.loadEventEnd, height: innerHeight, width: innerWidth,
    page_width: document.documentElement.scrollWidth,
    verdict: bottom('.verdict'), table: bottom('.glance'),
    first_row: bottom('.glance tbody tr'), plots: document.querySelectorAll('figure svg').length,
    rows: document.querySelectorAll('#findings tbody tr').length,
  });
  document.body.append(answer);
}));
"""


def chromium() -> str | None:
    """The path of a browser; None where none is installed."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def measured(browser: str, page: Path, folder: Path, size: tuple[int, int]) -> dict[str, Any]:
    """Opens a copy of the page that measures itself.

    Args:
        browser: The browser.
        page: The page.
        folder: For the copy and the browser's profile.
        size: Of the window, in pixels.
    """
    copy = folder / f"measured-{page.name}"
    text = page.read_text("utf-8").replace("</body>", f"<script>{_MEASURE}</script></body>")
    copy.write_text(text, "utf-8")
    dumped = _run(
        browser, folder, size, "--dump-dom", "--virtual-time-budget=20000", copy.as_uri()
    )
    found = re.search(r'<pre id="measured">(.*?)</pre>', dumped, re.DOTALL)
    assert found is not None, dumped[:500]
    answer: dict[str, Any] = json.loads(unescape(found[1]))
    return answer


def screenshot(browser: str, page: Path, picture: Path, size: tuple[int, int]) -> None:
    """Takes a picture of what is seen without scrolling."""
    _run(browser, picture.parent, size, f"--screenshot={picture}", page.as_uri())


def printed(browser: str, page: Path, document: Path) -> None:
    """Prints the page to a PDF."""
    _run(browser, document.parent, (1280, 900), f"--print-to-pdf={document}", page.as_uri())


def _run(browser: str, folder: Path, size: tuple[int, int], *more: str) -> str:
    window = f"--window-size={size[0]},{size[1]}"
    command = [browser, *_FLAGS, window, f"--user-data-dir={folder / 'profile'}", *more]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return done.stdout.decode("utf-8")
