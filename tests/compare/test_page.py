"""The page in a real browser: it shows its values, says them under the pointer, and asks for nothing."""

import shutil
import subprocess
from pathlib import Path

import pytest

from project.__main__ import main
from project.compare.figure import HEIGHT, WIDTH

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--window-size=1200,1600",
]

# Points at the last step of the first panel, and reports what is then shown.
POINT = """<script>
const panel = document.querySelector("figure svg"), box = panel.getBoundingClientRect();
panel.dispatchEvent(new PointerEvent("pointermove", {clientX: box.right - 20, clientY: box.top + 20}));
addEventListener("load", () => {
  const names = performance.getEntriesByType("resource").map(entry => entry.name);
  document.body.dataset.requests = names.filter(name => !name.startsWith("data:")).join(" ") || "none";
});
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
def test_a_browser_shows_the_values_and_makes_no_request(four: Path, tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    assert main(["compare", str(four), "--output", str(page)]) == 0
    page.write_text(page.read_text().replace("</html>", POINT + "</html>"))

    def browse(*options: str) -> subprocess.CompletedProcess[str]:
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        command = [str(CHROMIUM), *QUIET, profile, *options, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)

    done = browse("--dump-dom")
    assert "CONSOLE" not in done.stderr, done.stderr
    tip = done.stdout.partition('<div id="tip"')[2].partition("<script")[0]
    assert "visible" in tip and "step 19" in tip
    assert "A  0.92 ± 0.02828" in tip and "B  0.79 ± 0.01414" in tip and tip.count("n = 2") == 2
    assert "0.920 ± 0.028" in done.stdout and f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}"' in done.stdout
    assert 'data-requests="none"' in done.stdout

    browse(f"--screenshot={picture}")
    from matplotlib.image import imread

    pixels = imread(picture)
    assert pixels.shape[:2] == (1600, 1200)
    assert len({tuple(pixel) for pixel in pixels[::4, ::4, :3].reshape(-1, 3).round(1).tolist()}) > 20  # not blank
