import pytest

from benchmarks import monitors


def test_the_cost_is_spread_over_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    monitors.main(["--quick"])
    lines = capsys.readouterr().out.splitlines()
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    plain, measured, share = (row[1] for row in table[2:])
    ratio = float(measured.removesuffix(" ms")) / float(plain.removesuffix(" ms"))
    assert float(share.removesuffix("%")) == pytest.approx(100 * (ratio - 1) / 50, abs=0.1)
