"""Bad input: one clear line, the cause first, an exit code that is not zero, and the folder of runs as it was."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from project.__main__ import main
from project.runs import Run


class Bad(NamedTuple):
    """Words of a command line, with {tmp}, {runs}, {run} and {broken} for paths, and parts of what is to be said.

    `fit` stands for a good command line, to which the words are added.
    """

    words: str
    expected: tuple[str, ...]
    files: dict[str, str | bytes]  # to be written into {tmp}
    environment: dict[str, str]


def bad(words: str, *expected: str, files: dict[str, str | bytes] | None = None, **environment: str) -> Bad:
    return Bad(words, expected, files or {}, environment)


def fit(words: str, *expected: str, **environment: str) -> Bad:
    return bad(f"fit {words}", *expected, **environment)


def yaml_file(content: str | bytes, *expected: str) -> Bad:
    return bad("fit --config {tmp}/wrong.yaml", *expected, files={"wrong.yaml": content})


def table(name: str, content: str | bytes, *expected: str, words: str = "") -> Bad:
    return bad(f"fit --data.source.train {{tmp}}/{name} {words}", *expected, files={name: content})


ROWS = "text,label\n" + "".join(f"word {i},{'ab'[i % 2]}\n" for i in range(40))

CASES: list[Bad] = [
    # options
    fit("--trainer.max_epoch 1", "--trainer.max_epoch", "did you mean --trainer.max_epochs?"),
    fit("--trainer.max_epochs many", "trainer.max_epochs", "expected int", "many"),
    fit("--trainer.max_epochs -1", "trainer.max_epochs"),
    fit("--trainer.max_steps 0", "trainer.max_steps 0 trains nothing"),
    fit("--trainer.max_epochs 0", "trainer.max_epochs 0 trains nothing"),
    fit("--trainer.limit_train_batches 0", "trainer.limit_train_batches 0 trains nothing"),
    fit("--trainer.precision 12", "trainer.precision", "bf16-mixed"),
    fit("--trainer.devices 0", "devices"),
    fit("--trainer.callbacks [Nothing]", "Nothing"),
    fit("--trainer.strategy dpp", "strategy", "dpp"),
    fit("--trainer.limit_val_batches 2.5", "limit_val_batches", "2.5"),
    fit("--trainer.accumulate_grad_batches 0", "accumulate_grad_batches"),
    fit("--trainer.val_check_interval 5000", "`val_check_interval` (5000) must be less than"),
    fit("--trainer.gradient_clip_algorithm cut", "gradient_clip_algorithm", "norm"),
    fit("--checkpoint.every_n_steps 0", "every_n_steps 0", "positive"),
    fit("--model.encoder.d_modl 3", "model.encoder", "d_modl", "did you mean d_model?"),
    fit("--model.encoder.class_path project.nn.Encodr", "Encodr", "Encoder"),
    fit("--model.encoder.class_path nowhere.Encoder", "nowhere"),
    fit("--model.encoder.num_heads 5", "d_model 32", "5"),
    fit("--model.encoder.num_heads 0", "num_heads 0", "1 at least"),
    fit("--model.encoder.num_layers 0", "num_layers 0", "1 at least"),
    fit("--model.encoder.d_ff 0", "d_ff 0", "1 at least"),
    fit("--model.encoder.max_length 8", "data.max_length 32", "max_length 8"),
    fit("--model.members 0", "members", "got 0"),
    fit("--model.label_smoothing 2", "label_smoothing 2.0"),
    fit("--model.word_dropout 1.5", "word_dropout 1.5"),
    fit("--model.layer_decay 0", "layer_decay 0.0"),
    fit("--model.encoder.position circular", "position", "rotary"),
    fit("--model.encoder.activation tanh", "activation", "gelu"),
    fit("--model.encoder.dropout 1.5", "dropout", "1.5"),
    fit("--model.pooling median", "pooling", "mean_max"),
    fit("--model.warmup_ratio 2", "warmup_ratio", "2"),
    fit("--model.class_weights [1,2]", "class_weights", "2 entries for 3 labels"),
    fit("--model.optimizer.lrr 1", "lrr"),
    fit("--model.optimizer.lr fast", "lr", "fast"),
    fit("--model.optimizer torch.optim.Adamm", "Adamm"),
    fit("--model.optimizer AdmW", "AdmW", "did you mean AdamW?"),
    fit("--model.optimizer.lr -1", "model.optimizer", "-1"),
    fit("--model.optimizer torch.optim.LBFGS", "model.optimizer", "LBFGS"),
    fit("--trainer.callbacks+ ModelChekpoint", "ModelChekpoint", "did you mean ModelCheckpoint?"),
    fit("--data.max_length 1", "max_length 1"),
    fit("--data.vocab_size 4", "vocab_size 4"),
    fit("--data.num_workers -1", "num_workers -1"),
    fit("--data.tokens_per_batch 8", "tokens_per_batch 8"),
    fit("--data.val_share 0.9", "val_share 0.9"),
    fit("--data.tokenizer /nowhere", "/nowhere"),
    fit("--seed_everything lucky", "seed_everything"),
    fit("--config /nowhere.yaml", "/nowhere.yaml"),
    fit("--config {tmp}", "cannot read the configuration", "directory"),
    # configuration files
    yaml_file("trainer: {max_epochs: [1", "wrong.yaml is no YAML", "line 1"),
    yaml_file("- a list", "wrong.yaml holds no keys and values"),
    yaml_file("", "wrong.yaml holds no keys and values"),
    yaml_file(b"name: \xff", "wrong.yaml is no YAML", "utf-8"),
    yaml_file("trainer: {max_epoch: 1}", "trainer.max_epoch", "did you mean trainer.max_epochs?"),
    yaml_file("trainr: {max_epochs: 1}", "trainr", "did you mean trainer.max_epochs?"),
    yaml_file("model: {class_path: project.tasks.SequenceClasification}", "did you mean SequenceClassification?"),
    # data
    fit("--data.source.train /nowhere.csv", "/nowhere.csv", "No such file"),
    fit("--data.source.train {tmp}", "cannot read", "directory"),
    fit("--data.source.text body", "body", "text, label"),
    fit("--data.source.label lable", "'lable'", "did you mean 'label'?"),
    fit("--data.source.encoding utf-9", "encoding 'utf-9' is unknown"),
    table("none.csv", "", "is empty"),
    table("header.csv", "text,label\n", "holds no rows"),
    table("table.xlsx", "x", ".csv, .tsv, .jsonl, .parquet"),
    table("semicolons.csv", "text;label\na;b\n", "are its fields separated by ';'? Then set delimiter"),
    table("fields.csv", "text,label\na,b,c\n", "line 2 has 3 fields, the header 2"),
    table("quote.csv", 'text,label\n"a,b\n', "line 2", "set quotes to false"),
    table("twice.csv", "text,text\na,b\n", "several columns 'text'"),
    table("latin.csv", b"text,label\ncaf\xe9,b\n", "is not utf-8 (byte 0xe9 in line 2)", "set encoding"),
    table("unlabelled.csv", "text,label\na,b\nc,\n", "row 2 has no 'label'", "rows count from 1"),
    table("one.csv", ROWS.replace(",b", ",a"), "one class, ['a']"),
    table("few.csv", "text,label\na,x\nb,y\n", "2 different texts in 2 classes are too few to cut val from"),
    table("broken.jsonl", '{"text": "a"', "line 1 is not JSON"),
    table("list.jsonl", "[1, 2]\n", "line 1 is not a JSON object"),
    table("float.jsonl", '{"text": "a", "label": 0.5}\n', "row 1", "labels are strings or integers"),
    table("broken.parquet", "PAR1", "is not a readable Parquet file"),
    table("same.csv", ROWS, "every text is also in another split", words="--data.source.val {tmp}/same.csv"),
    table("labels.csv", ROWS, "unknown label 'b'", words="--data.labels [a,c]"),
    bad(
        "fit --data.source.train {tmp}/train.csv --data.source.val {tmp}/val.csv",
        "row 1 (val) has the label 'c', which training does not have",
        files={"train.csv": ROWS, "val.csv": "text,label\nnew,c\n"},
    ),
    bad("fit --data.tokenizer {tmp}/t.json", "t.json is no tokenizer", files={"t.json": "{}"}),
    # runs and checkpoints
    fit("--run /nowhere", "/nowhere does not exist"),
    fit("--ckpt_path /nowhere.ckpt", "there is no checkpoint /nowhere.ckpt"),
    fit("--ckpt_path best", "--ckpt_path best needs --run"),
    fit("--weights /nowhere", "/nowhere does not exist"),
    fit("--weights {run} --model.encoder.num_layers 2", "of another model: it lacks network.encoder.layers.1."),
    fit("--run {run} --model.encoder.d_model 16", "of another model: it differs"),
    fit("--model.pretrained {run} --model.encoder.d_model 16", "model.encoder.d_model is 16 here, 32 in"),
    bad("fit --weights {tmp}/half.ckpt", "half.ckpt is damaged or no checkpoint", files={"half.ckpt": b"PK\3\4"}),
    bad("test --ckpt_path {tmp}/text.ckpt", "text.ckpt", files={"text.ckpt": "weights", "config.yaml": "{}"}),
    bad(
        "predict --ckpt_path {run}/labels.json --input {tmp}/a.txt",
        "labels.json is damaged or no checkpoint",
        files={"a.txt": "a"},
    ),
    bad("test --run {tmp}", "no checkpoint best.ckpt", files={"config.yaml": "{}"}),
    bad("test --run {tmp}", "is no run: it holds no config.yaml"),
    bad("test --run {runs}", "did you mean {run}?"),
    bad("test --run {run} --data.source.train /nowhere.csv", "/nowhere.csv"),
    bad("test --run {broken}", "{broken}/config.yaml is no YAML"),
    bad("predict --run {broken} --input {tmp}/a.txt", "{broken}/config.yaml is no YAML", files={"a.txt": "a"}),
    bad("fit --data.tokenizer {broken}", "{broken}/tokenizer.json is no tokenizer"),
    bad("export --run {run} --artifacts onxx", "onxx"),
    bad("export --run /nowhere", "/nowhere does not exist"),
    # verbs
    bad("", "usage"),
    bad("fti", "did you mean 'fit'?"),
    bad("--config c.yaml fit", "options come after the verb"),
    bad("test --config c.yaml", "needs trained weights"),
    bad("validate", "needs trained weights"),
    bad("predict --inptu a.txt", "unrecognized arguments: --inptu", "did you mean --input?"),
    bad("predict a.txt", "unrecognized arguments: a.txt; see python -m project predict --help"),
    bad("predict --precision half", "argument --precision: invalid choice", "bf16-mixed"),
    bad("export --run {run} --artifact onnx", "did you mean --artifacts?"),
    bad("check --onyl overfit", "did you mean --only?"),
    bad("sweep --space s.yaml --trails=3", "did you mean --trials?"),
    bad("schema --out s.json", "did you mean --output?"),
    bad("compare {runs} --metric loss", "did you mean --metrics?"),
    bad("dashboard", "required: folder; see python -m project dashboard --help"),
    bad("new {tmp}/mine", "required: --name; see python -m project new --help"),
    bad("predict", "needs trained weights"),
    bad("test --run", "--run needs a value"),
    bad("predict --run {run} --input /nowhere.txt", "cannot read /nowhere.txt"),
    bad("predict --run {run} --input {tmp}/a.csv", "did you mean 'txt'?; see --text", files={"a.csv": "txt\na\n"}),
    bad("predict --run {run} --input {tmp}/a.txt", "a.txt is not UTF-8", files={"a.txt": b"\xff"}),
    bad("predict --run {run} --output {tmp}/a.xlsx", "must end in .csv or .jsonl"),
    bad("predict --run {run} --input {tmp}/a.txt --output /proc/a", "must end in .csv", files={"a.txt": "a"}),
    bad("predict --run {run} --input {tmp}/a.txt --output /proc/a.csv", "cannot write /proc/a", files={"a.txt": "a"}),
    bad("predict --bundle {tmp}", "{tmp}"),
    bad("predict --bundle {tmp} --run {run}", "leave out --run, --ckpt_path and --precision, or --bundle"),
    bad("predict --run {run} --artifact onnx", "give --bundle"),
    bad("predict --run {run} --ckpt_path lst", "there is no checkpoint lst"),
    bad("predict --ckpt_path last", "--ckpt_path last needs --run"),
    bad("export --run {run} --ckpt_path {tmp}/none.ckpt", "there is no checkpoint {tmp}/none.ckpt"),
    # environments
    fit("--name ../elsewhere", "'../elsewhere'", "see --name"),
    fit("--name=", "''", "see --name"),
    fit("--runs_dir /proc/runs", "cannot write the run folder /proc/runs", "see --runs_dir"),
    fit("--data.cache_dir /proc/none", "cannot write the data cache /proc/none", "see cache_dir"),
    fit("--trainer.accelerator gpu", "gpu"),
    fit("", "SLURM", SLURM_JOB_ID="1", SLURM_NTASKS="2", SLURM_JOB_NAME="train", SLURM_PROCID="0", SLURM_LOCALID="0"),
    fit("", "must be told of one folder: give --run", WORLD_SIZE="2", RANK="1", LOCAL_RANK="1"),
    fit("--data.source project.data.HubDataset --data.source.path /nowhere", "datasets cannot load '/nowhere'"),
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: one as it should be, one damaged."""
    folder = tmp_path_factory.mktemp("bad") / "runs"
    for name in ("whole", "broken"):
        shutil.copytree(finished.folder, folder / "tiny" / name)
    for name in ("config.yaml", "tokenizer.json"):
        (folder / "tiny/broken" / name).write_text("{")
    return folder


def state(folder: Path) -> dict[str, tuple[int, int] | None]:
    """Of files size and time, of folders the name."""
    found = {str(path.relative_to(folder)): path.stat() if path.is_file() else None for path in folder.rglob("*")}
    return {name: status and (status.st_size, status.st_mtime_ns) for name, status in found.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.words + str([*case.files, *case.environment]))
def test_one_line_and_nothing_touched(
    case: Bad,
    config: Path,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"tmp": tmp_path, "runs": runs, "run": runs / "tiny/whole", "broken": runs / "tiny/broken"}
    for name, content in case.files.items():
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    words = case.words.format(**places).split()
    if words[:1] == ["fit"]:
        words[1:1] = ["--config", str(config), "--runs_dir", str(runs)]
    before = state(runs)
    assert main(words) != 0
    error = capsys.readouterr().err.strip() if words else "usage"
    assert state(runs) == before
    assert error.startswith("error: ") or not words, error
    assert len(error.splitlines()) <= 2, error
    for part in case.expected:
        assert part.format(**places) in error


def test_there_are_sixty() -> None:
    assert len(CASES) >= 60


def test_a_checkpoint_is_data(finished: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What would have to be executed is refused, not executed."""
    (tmp_path / "config.yaml").write_text(finished.config_file.read_text())
    torch.save({"state_dict": {}, "evil": Evil(tmp_path / "executed")}, tmp_path / "evil.ckpt")
    for verb in ("test", "predict"):
        assert main([verb, "--ckpt_path", str(tmp_path / "evil.ckpt")]) == 1
        assert str(tmp_path / "evil.ckpt") in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_monitor_that_nobody_logs_fails_before_training(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content: dict[str, Any] = yaml.safe_load(config.read_text())
    content["trainer"]["callbacks"][0]["init_args"]["monitor"] = "val/acuracy"
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(content))
    assert main(["fit", "--config", str(file), "--runs_dir", str(tmp_path / "runs")]) == 1
    captured = capsys.readouterr()
    assert "did you mean 'val/accuracy'?" in captured.err
    assert "epoch 1" not in captured.out
    assert not list(tmp_path.glob("runs/*/2*"))


def test_predictions_make_their_folder(finished: Run, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a dog")
    predict = ["predict", "--run", str(finished.folder), "--input", str(tmp_path / "texts.txt"), "--output"]
    assert main([*predict, str(tmp_path / "new/folder/labels.jsonl")]) == 0
    assert '"label": "animal"' in (tmp_path / "new/folder/labels.jsonl").read_text()


@pytest.mark.parametrize("verb", ["--help", "--version"])
def test_help_and_version_need_no_torch(verb: str, shell: Callable[..., Any]) -> None:
    result = shell(verb, PYTHONPROFILEIMPORTTIME="1")
    assert result.returncode == 0 and result.stdout
    assert "torch" not in result.stderr.split()
