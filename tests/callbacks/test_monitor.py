"""The monitors write what can be computed by hand, and training ends at the same weights bit by bit."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from project.callbacks import ActivationMonitor, GradientMonitor, UpdateMonitor
from project.nn import Encoder
from project.tasks import SequenceClassification

Values = dict[str, float]


class Rows(DummyLogger):
    """Keeps what is logged, by step."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, Values] = {}

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        assert step is not None
        self.rows.setdefault(step, {}).update(metrics)


class Net(nn.Module):
    """Everything that a look at it could disturb: random numbers, and buffers that a forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.lower = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.relu, self.tanh = nn.ReLU(), nn.Tanh()
        self.drop = nn.Dropout(0.5)
        self.upper = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.upper(self.drop(self.tanh(4 * self.relu(self.norm(self.lower(x))))))


class Module(LightningModule):
    """The weights and the batch before each step stay in `steps`."""

    def __init__(self, manual: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = Net()
        self.automatic_optimization = not manual
        self.steps: list[tuple[dict[str, Tensor], Tensor, Tensor]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        self.steps.append(({k: v.clone() for k, v in self.net.state_dict().items()}, x, y))
        loss = F.cross_entropy(self.net(x), y)
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(48, 4, generator=generator), torch.arange(48) % 3)


def fit(
    module: LightningModule, *callbacks: Callback, loader: DataLoader[Any] | None = None, **options: Any
) -> dict[int, Values]:
    logger = Rows()
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    settings: dict[str, Any] = {"max_epochs": 1, "devices": 1, "logger": logger, **quiet, **options}
    trainer = Trainer(accelerator="cpu", callbacks=list(callbacks), log_every_n_steps=1, **settings)
    torch.manual_seed(5)
    trainer.fit(module, loader or DataLoader(data(), batch_size=8))
    return logger.rows


def monitors(every_n_steps: int) -> list[Callback]:
    return [ActivationMonitor(every_n_steps), GradientMonitor(every_n_steps), UpdateMonitor(every_n_steps)]


def test_activations_of_the_step_by_hand() -> None:
    module = Module()
    rows = fit(module, ActivationMonitor(3))
    assert [step for step, values in rows.items() if "activation_std/net.lower" in values] == [2, 5]
    assert all("train/loss" in rows[step] for step in (2, 5))
    weights, x, _ = module.steps[5]
    net = Net()
    net.load_state_dict(weights)
    lower = net.lower(x)
    relu = net.relu(net.norm(lower))
    tanh = net.tanh(4 * relu)
    expected = {
        "activation_mean/net.lower": lower.mean(),
        "activation_std/net.lower": lower.std(correction=0),
        "activation_zeros/net.lower": 0.0,
        "activation_zeros/net.relu": (relu == 0).float().mean(),
        "activation_saturated/net.tanh": (tanh.abs() > 0.98).float().mean(),
    }
    assert {name: rows[5][name] for name in expected} == pytest.approx(
        {k: float(torch.as_tensor(v).detach()) for k, v in expected.items()}
    )
    assert 0 < rows[5]["activation_saturated/net.tanh"] < 1 and 0 < rows[5]["activation_zeros/net.relu"] < 1
    assert not any("drop" in name for name in rows[5])
    assert not module.net.lower._forward_hooks


@pytest.mark.parametrize("manual", [False, True])
def test_gradient_norms_and_update_ratios_by_hand(manual: bool) -> None:
    module = Module(manual)
    module.net.drop.p = 0.0
    clip = {} if manual else {"gradient_clip_val": 0.01}
    rows = fit(module, GradientMonitor(2), UpdateMonitor(2), **clip)
    weights, x, y = module.steps[3]
    net = Net()
    net.load_state_dict(weights)
    net.drop.p = 0.0
    F.cross_entropy(net(x), y).backward()
    norms = {name: torch.cat([p.grad.flatten() for p in getattr(net, name).parameters()]).norm() for name in
             ("lower", "norm", "upper")}  # fmt: skip
    total = torch.stack(list(norms.values())).norm()
    expected = {f"gradient_norm/net.{name}": float(value) for name, value in norms.items()}
    assert {name: rows[3][name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-7)
    assert rows[3]["gradient_norm/all"] == pytest.approx(float(total), rel=1e-4)

    scale = 0.5 if manual else 0.5 * 0.01 / float(total)  # learning rate, and clipping
    weight = torch.cat([p.detach().flatten() for p in net.upper.parameters()]).norm()
    assert rows[3]["update_ratio/net.upper"] == pytest.approx(scale * float(norms["upper"] / weight), rel=1e-3)


@pytest.mark.parametrize("compiled", [None, "in place", "wrapped"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_ends_at_the_same_weights(compiled: str | None, accumulate: int) -> None:
    ends, compilations = [], 0

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        nonlocal compilations
        compilations += 1
        return graph.forward

    for watch in (True, False):
        torch._dynamo.reset()
        module = Module()
        if compiled == "in place":
            module.net.compile(backend=backend)
        elif compiled == "wrapped":
            module.net = torch.compile(module.net, backend=backend)  # type: ignore[assignment]
        rows = fit(module, *(monitors(2) if watch else []), accumulate_grad_batches=accumulate, max_epochs=2)
        ends.append(list(module.net.state_dict().values()))
        if watch:
            layer = "net._orig_mod.lower" if compiled == "wrapped" else "net.lower"
            seen = [step for step, values in rows.items() if f"activation_std/{layer}" in values]
            assert seen == list(range(1, 12 // accumulate, 2))
            assert all(f"{what}/{layer}" in rows[step] for step in seen for what in ("gradient_norm", "update_ratio"))
            watched, compilations = compilations, 0
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert compilations == watched and bool(compilations) == bool(compiled)


def test_compiled_code_gives_the_values_of_the_step() -> None:
    rows = []
    for compiled in (False, True):
        module = Module()
        if compiled:
            torch._dynamo.reset()
            module.net.compile(backend="eager")
        rows.append(fit(module, ActivationMonitor(2)))
    assert rows[1][5] == pytest.approx(rows[0][5])


def test_the_gradient_of_an_accumulation_window_is_that_of_one_large_batch() -> None:
    rows = []
    for accumulate, sizes in ((3, (1, 7, 4)), (1, (12,))):
        torch.manual_seed(0)
        encoder = Encoder(d_model=16, num_layers=1, num_heads=2, dropout=0.0, max_length=12)
        task = SequenceClassification(encoder, ["a", "b"], 20, embedding_dropout=0.0, head_dropout=0.0)
        tokens, labels = torch.arange(12 * 9).view(12, 9) % 20, torch.arange(12) % 2
        whole = {"tokens": tokens, "padding_mask": tokens > 3, "labels": labels, "ids": torch.arange(12)}
        parts = {name: value.split(sizes) for name, value in whole.items()}
        batches = [{name: parts[name][i] for name in parts} for i in range(len(sizes))]
        options: dict[str, Any] = {"accumulate_grad_batches": accumulate, "limit_val_batches": 0}
        rows.append(fit(task, GradientMonitor(1), loader=DataLoader(batches, batch_size=None), **options)[0])  # type: ignore[arg-type]
    assert "gradient_norm/network.head.linear" in rows[0]
    assert rows[0] == pytest.approx(rows[1], rel=1e-4)


def test_two_processes_end_alike_and_log_the_gradient_of_both(tmp_path: Path) -> None:
    ends, logs = [], []
    for name, watch in (("with", True), ("without", False)):
        module = Module()
        module.net.drop.p = 0.0
        logger = CSVLogger(tmp_path, name, version="")
        options: dict[str, Any] = {"devices": 2, "strategy": "ddp_fork", "logger": logger}
        fit(module, *(monitors(1) if watch else []), **options)
        ends.append(list(module.net.state_dict().values()))
        logs.append((tmp_path / name / "metrics.csv").read_text())
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    rows = [row for row in csv.DictReader(io.StringIO(logs[0])) if row["gradient_norm/all"]]
    assert [row["step"] for row in rows] == ["0", "1", "2"]

    net = Module().net
    net.drop.p = 0.0
    for rank in range(2):
        rows_of_rank = list(DistributedSampler(data(), 2, rank))[:8]  # as Lightning makes it
        x, y = data()[rows_of_rank]
        (F.cross_entropy(net(x), y) / 2).backward()
    norm = torch.cat([p.grad.flatten() for p in net.upper.parameters()]).norm()  # type: ignore[union-attr]
    assert float(rows[0]["gradient_norm/net.upper"]) == pytest.approx(float(norm), rel=1e-4)


def test_the_norm_of_all_alone() -> None:
    rows, both = (fit(Module(), GradientMonitor(2, by_layer=by_layer)) for by_layer in (False, True))
    assert [name for name in rows[3] if name.startswith("gradient_norm/")] == ["gradient_norm/all"]
    assert rows[3]["gradient_norm/all"] == both[3]["gradient_norm/all"] > 0


def test_an_interval_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="1 at least"):
        GradientMonitor(0)
