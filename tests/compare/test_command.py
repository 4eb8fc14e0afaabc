"""compare, from run folders alone: what it prints and writes, and what it says of bad input."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from project.__main__ import main
from project.compare.figure import COLOURS
from tests.compare.conftest import MakeRun

ROOT = Path(__file__).parents[2]


def test_a_folder_of_runs_becomes_a_table_a_page_and_a_picture(four: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(four)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 runs of 2 experiments"
    assert lines[3].split()[:7] == ["A", "128", "2", "0.920", "±", "0.028", "0.080"]
    assert lines[4].split()[:6] == ["B", "64", "2", "0.790", "±", "0.014"]
    assert "The runs differ in model.encoder.d_model; the same in all: data and code." in lines
    page = (four / "small" / "compare.html").read_text()
    assert "0.920 ± 0.028" in page and 'href="2026-0"' in page
    assert page.count("<svg") == 2 and "http" not in page.replace("http://www.w3.org/2000/svg", "").replace(
        "http-equiv", ""
    )
    assert (four / "small" / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_filters_and_runs_choose(four: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = tmp_path / "new" / "page.html"
    words = [["model.d_model=128"], ["model.d_model=64", "seed_everything=2"]]
    for word, expected in zip(words, ("2 runs of 1 experiment", "1 run of 1 experiment"), strict=True):
        assert main(["compare", *word, "--runs_dir", str(four), "--output", str(output)]) == 0
        assert capsys.readouterr().out.startswith(expected)
    assert output.exists() and output.with_suffix(".png").exists()
    runs = [str(four / "small" / name) for name in ("2026-0", "2026-2", "2026-0")]
    assert main(["compare", *runs, "--metrics", "train/*"]) == 0
    assert capsys.readouterr().out.startswith("2 runs of 2 experiments")
    assert (four / "small" / "compare.html").read_text().count("<svg") == 1


def test_a_broken_run_among_others_is_left_out_and_said(four: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (four / "small" / "2026-3" / "metrics.csv").write_text("epoch,step,val/accuracy\n0,9,0.5\n0,10,much\n")
    assert main(["compare", str(four)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("3 runs of 2 experiments")
    assert err.startswith("left out: ") and "2026-3/metrics.csv: line 3: could not convert" in err
    assert "metrics.csv: line 3" in (four / "small" / "compare.html").read_text()


BROKEN = {
    "config.yaml": ("a: [", "is no YAML"),
    "config.yaml ": ("- 1", "holds no keys and values"),
    "metrics.json": ("{", "is no JSON"),
    "data.json": ("[]", "holds no keys and values"),
    "metrics.csv": ("epoch,loss\n1,2\n", "has no column 'step'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_that_was_named_is_one_line(
    name: str, make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run("1")
    content, message = BROKEN[name]
    (folder / name.strip()).write_text(content)
    assert main(["compare", str(folder), str(make_run("2"))]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert name.strip() in error and message in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["EMPTY"], "is no run: it holds no config.yaml"),
        (["RUNS", "d_model=512"], "no run has model.encoder.d_model=512; there are 128, 64"),
        (["RUNS", "d_modl=64"], "no run has a setting d_modl; did you mean d_model"),
        (["RUNS", "--metrics", "x/*"], "no curve of x/*: not logged, or once only; there are train/loss, val/accuracy"),
        (["RUNS", "--output", "page.txt"], "must end in .html"),
        (["RUNS", "--output", "/proc/no/page.html"], "cannot write /proc/no/page.html"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, four: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"EMPTY": str(tmp_path / "empty"), "RUNS": str(four)}
    assert main(["compare", *(places.get(word, word) for word in words)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error


def test_data_that_no_run_recorded_are_not_called_the_same(four: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in four.glob("*/*/data.json"):
        file.unlink()
    assert main(["compare", str(four)]) == 0
    out = capsys.readouterr().out
    assert "the same in all: code." in out and "4 of 4 runs did not record their data." in out


def test_wandbs_folders_hold_no_runs(four: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner = four / "small" / "wandb" / "run-1" / "files"
    inner.mkdir(parents=True)
    (inner / "config.yaml").write_text("a: 1\n")
    assert main(["compare", str(four)]) == 0
    assert capsys.readouterr().out.startswith("4 runs")


def test_what_a_run_says_cannot_leave_its_place_in_the_page(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("1", config={"note": "</script><script>alert(1)</script>"})
    make_run("2", config={"note": "<b>&"})
    output = tmp_path / "page.html"
    assert main(["compare", str(tmp_path / "runs"), "--output", str(output)]) == 0

    class Tags(HTMLParser):
        found: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.found.append(tag)

    parser = Tags()
    parser.feed(output.read_text())
    assert parser.found.count("script") == 2
    assert "&lt;b&gt;&amp;" in output.read_text()


def test_hundreds_of_runs_and_no_torch(make_run: MakeRun, tmp_path: Path) -> None:
    for i in range(300):
        make_run(f"{i:03}", 0.5 + i / 1000, d_model=i // 2, seed=i % 2)
    code = (
        "import sys; from project.__main__ import main; status = main(sys.argv[1:])\n"
        "heavy = {'torch', 'lightning', 'pandas', 'wandb'} & set(sys.modules)\n"
        "assert not heavy, heavy; sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "compare", str(tmp_path / "runs")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "300 runs of 150 experiments" in done.stdout and "and 130 more, on the page" in done.stdout
    page = (tmp_path / "runs" / "small" / "compare.html").read_text()
    assert "the other 142" in page and "All 150 experiments" in page


def test_curves_are_drawn_in_the_order_of_a_dashboard(four: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["speed/tokens_per_second", *(f"own/{i:02}" for i in range(12)), "gradient_norm/all", "lr-AdamW"]
    names += ["train/loss", "val/loss", "val/accuracy", "examples"]
    for number, file in enumerate(sorted(four.glob("*/*/metrics.csv"))):
        rows = [[0, step, *(step + i + number for i in range(len(names)))] for step in (1, 2)]
        lines = [["epoch", "step", *names], *rows]
        file.write_text("\n".join(",".join(map(str, line)) for line in lines))
    assert main(["compare", str(four)]) == 0
    page = (four / "small" / "compare.html").read_text()
    first = ["val/accuracy", "val/loss", "train/loss", "lr-AdamW", "gradient_norm/all", "speed/tokens_per_second"]
    assert re.findall("<figcaption>(.*?)</figcaption>", page) == [*first, *(f"own/{i:02}" for i in range(6))]
    assert "not drawn: own/06, own/07, own/08, own/09, own/10, own/11 (see --metrics)" in page


def test_colours_stand_out_from_the_ground() -> None:
    def luminance(colour: str) -> float:
        """As WCAG 2.2 defines it."""
        channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    for light, dark in COLOURS:
        for colour, ground in ((light, "#ffffff"), (dark, "#131416")):
            low, high = sorted((luminance(colour), luminance(ground)))
            assert (high + 0.05) / (low + 0.05) >= 3.0, (colour, ground)
