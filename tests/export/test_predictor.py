"""A bundle labels texts as its run does, without torch."""

import json
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from project.__main__ import main
from project.errors import UserError
from project.export.predictor import Predictor, _batches
from project.predict import predict_run
from tests.export.conftest import Bundle

TEXTS = [
    "a small old dog",
    "",
    "bread and cheese " * 100,
    "\u6f22\u5b57 \u2603",
    "the hammer",
    "   ",
    "soup\tof\u0000 the saw",
]


@pytest.fixture
def copied(bundle: Bundle, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle.folder, tmp_path / "export"))


def test_same_as_predict_from_the_run(bundle: Bundle) -> None:
    texts = TEXTS * 30
    ours = Predictor(bundle.folder).predict(texts)
    run = predict_run(bundle.run, bundle.run.checkpoint(), texts, "32-true")
    np.testing.assert_allclose([r["probability"] for r in ours], [r["probability"] for r in run], atol=1e-4)
    assert [r["label"] for r in ours] == [r["label"] for r in run]
    assert [r["text"] for r in ours] == texts


def test_near_to_predict_in_half_precision(bundle: Bundle) -> None:
    half = predict_run(bundle.run, bundle.run.checkpoint(), TEXTS, "bf16-mixed")
    ours = Predictor(bundle.folder).predict(TEXTS)
    differences = np.abs([a["probability"] - b["probability"] for a, b in zip(ours, half, strict=True)])
    assert 1e-6 < differences.max() < 0.02


def test_int8(bundle: Bundle) -> None:
    full, int8 = (
        Predictor(bundle.folder).probabilities(TEXTS),
        Predictor(bundle.folder, "onnx-int8").probabilities(TEXTS),
    )
    assert 0 < np.abs(full - int8).max() < 0.2


def test_rows_do_not_depend_on_their_company(bundle: Bundle) -> None:
    predictor = Predictor(bundle.folder)
    together = predictor.probabilities(TEXTS)
    np.testing.assert_allclose(together, np.concatenate([predictor.probabilities([t]) for t in TEXTS]), atol=1e-6)
    np.testing.assert_allclose(together.sum(1), 1.0, atol=1e-6)
    assert predictor.probabilities([]).shape == (0, 3)


def test_lone_surrogate(bundle: Bundle) -> None:
    assert Predictor(bundle.folder).predict(["dog \ud800"])[0]["label"] == "animal"


def test_too_long_is_cut_as_in_training(bundle: Bundle) -> None:
    predictor = Predictor(bundle.folder)
    long = predictor._encode(["dog " * 100])[0]
    assert len(long) == 32
    predictor.tokenizer.no_truncation()
    with pytest.raises(ValueError, match="dimension sequence must be at most 32"):
        predictor.probabilities(["dog " * 100])


def test_tokenizer_without_a_limit_gets_the_networks(copied: Path) -> None:
    tokenizer = Tokenizer.from_file(str(copied / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.save(str(copied / "tokenizer.json"))
    assert len(Predictor(copied)._encode(["dog " * 100])[0]) == 32


def test_tokens_that_the_network_does_not_know(copied: Path) -> None:
    tokenizer = Tokenizer.from_file(str(copied / "tokenizer.json"))
    tokenizer.add_tokens(["xylophone"])
    tokenizer.save(str(copied / "tokenizer.json"))
    predictor = Predictor(copied)
    assert predictor.tokenizer.token_to_id("xylophone") >= (predictor.interface.inputs[0].num_ids or 0)
    unknown = predictor.tokenizer.token_to_id("[UNK]")
    assert predictor._encode(["xylophone"])[0][-1] == unknown
    predictor.predict(["a xylophone"])


def test_changed_file(copied: Path) -> None:
    with (copied / "model.onnx").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match=r"model\.onnx is not the file that was verified: its sha256 differs"):
        Predictor(copied)
    Predictor(copied, "onnx-int8")


def test_what_is_missing(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"is no bundle: it has no manifest\.json; make one: python -m project export"):
        Predictor(tmp_path)
    (copied / "labels.json").unlink()
    with pytest.raises(UserError, match=r"labels\.json: No such file"):
        Predictor(copied)
    manifest = json.loads((copied / "manifest.json").read_text())
    del manifest["artifacts"]["onnx"]
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="has no artifact onnx"):
        Predictor(copied, "onnx")
    monkeypatch.setattr("project.export.predictor.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs onnxruntime; install it: pip install onnxruntime"):
        Predictor(copied)


def test_batches() -> None:
    lengths = [5, 128, 7, 128, 1] * 40
    batches = list(_batches(lengths))
    assert sorted(row for rows in batches for row in rows) == list(range(200))
    assert all(len(rows) * max(lengths[row] for row in rows) <= 4096 for rows in batches)
    assert len(batches) <= 5


def test_no_torch_and_little_time(bundle: Bundle, tmp_path: Path) -> None:
    """The whole process costs less than a second of the processor, and knows neither torch nor lightning."""
    (tmp_path / "texts.txt").write_text("a small old dog\n\n")
    code = """
import sys
from project.__main__ import main
code = main(sys.argv[1:])
heavy = {"torch", "lightning", "pandas", "onnx", "wandb", "datasets"} & sys.modules.keys()
sys.exit(code or ", ".join(heavy) or 0)
"""
    arguments = ["predict", "--bundle", str(bundle.folder), "--input", str(tmp_path / "texts.txt")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert rows[0] == "text,label,probability"
    assert rows[1].startswith("a small old dog,animal,0.")
    assert len(rows) == 3
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def test_tables_need_no_torch_either(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('id,definition,label\n01,"the cat, old",?\n2,NA,\n')
    code = "import sys; from project.__main__ import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    options = ["--input", str(tmp_path / "t.csv"), "--text", "definition"]
    done = subprocess.run(
        [sys.executable, "-c", code, "predict", "--bundle", str(bundle.folder), *options],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header == "id,definition,label,predicted_label,probability"
    assert [row.rsplit(",", 2)[0] for row in rows] == ['01,"the cat, old",?', "2,NA,"]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_table_keeps_its_columns_from_a_run_and_a_bundle(bundle: Bundle, tmp_path: Path, ending: str) -> None:
    rows = [{"id": 1, "body": "the cat", "probability": [0.5], "note": None}, {"id": 2, "body": None, "note": "ä"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    written = []
    for weights in (["--bundle", str(bundle.folder)], ["--run", str(bundle.run.folder), "--precision", "32-true"]):
        output = tmp_path / f"out.{ending}"
        words = ["predict", *weights, "--text", "body", "--input", str(tmp_path / "t.jsonl"), "--output", str(output)]
        assert main(words) == 0
        written.append(output.read_text(encoding="utf-8"))
    of_bundle, of_run = (re.sub(r"(0\.\d\d)\d+", r"\1", text) for text in written)
    assert of_bundle == of_run
    if ending == "csv":
        header, first, second = of_run.splitlines()
        assert header == "id,body,probability,note,label,predicted_probability"
        assert first.startswith("1,the cat,[0.5],,animal,0.") and second.startswith("2,,,ä,")
    else:
        first, second = map(json.loads, of_run.splitlines())
        assert first == rows[0] | {"label": "animal", "predicted_probability": first["predicted_probability"]}
        assert {**second, **rows[1], "probability": None} == second
        assert set(second) == set(first)


def test_command_line(bundle: Bundle, shell: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    done = shell(
        "predict", "--bundle", str(bundle.folder), "--artifact", "onnx-int8", "--output", str(output), stdin="the cat\n"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(output.read_text())["label"] == "animal"
    done = shell("predict", "--bundle", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path} is no bundle")
