"""A workspace and a report of what runs have logged: the file says what would be sent, and it is what is sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from project.__main__ import main

wandb_workspaces = pytest.importorskip("wandb_workspaces.workspaces")
import wandb_workspaces.reports.v2.interface as reports  # noqa: E402
import wandb_workspaces.workspaces.internal as workspaces  # noqa: E402


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "classify"
    for id, header in (("a", "epoch,step,val/loss,lr-AdamW,own/score"), ("b", "epoch,step,val/loss,val/accuracy")):
        (folder / id).mkdir(parents=True)
        (folder / id / "metrics.csv").write_text(f"{header}\n0,0,1,1,1\n")
    return folder


def sections(workspace: Any) -> dict[str, list[list[str]]]:
    found = workspace["section"]["panelBankConfig"]["sections"]
    return {part["name"]: [panel["config"]["metrics"] for panel in part["panels"]] for part in found}


def test_without_an_account_the_definition_is_written(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(runs)]) == 0
    definition = json.loads((runs / "dashboard.json").read_text())
    assert sections(definition["workspace"]) == {
        "val": [["val/accuracy"], ["val/loss"]],
        "learning rate": [["lr-AdamW"]],
        "own": [["own/score"]],
    }
    assert all(f'"{name}"' in json.dumps(definition["report"]) for name in ("val/accuracy", "own/score"))
    assert "4 panels" in capsys.readouterr().out


def test_with_an_account_the_same_is_sent(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["dashboard", str(runs), "--entity", "team"])
    expected = json.loads((runs / "dashboard.json").read_text())
    given: dict[str, Any] = {}

    class Account:
        def projects(self, entity: str) -> list[Any]:
            return []

        def create_project(self, name: str, entity: str) -> None:
            given["project"] = (name, entity)

    def upsert(view: Any) -> Any:
        given["workspace"] = json.loads(view.spec.model_dump_json(by_alias=True, exclude_none=True))
        return {"upsertView": {"view": {"name": "view", "id": "1"}}}

    class SentError(Exception):
        pass

    def execute(api: Any, query: Any, variables: dict[str, Any]) -> Any:
        given["report"] = json.loads(variables["spec"])
        raise SentError("the answer of a server is not played")

    monkeypatch.setattr("project.dashboard.online", lambda: True)
    monkeypatch.setattr(workspaces, "upsert_view2", upsert)
    monkeypatch.setattr("wandb_workspaces.workspaces.interface.get_app_url", lambda api: "https://host")
    monkeypatch.setattr("wandb.Api", Account)
    monkeypatch.setattr(reports, "_get_api", Account)
    monkeypatch.setattr(reports, "execute_graphql", execute)
    assert main(["dashboard", str(runs), "--entity", "team"]) == 1
    assert "W&B did not take it: the answer of a server" in capsys.readouterr().err
    assert given["project"] == ("classify", "team")
    assert sections(given["workspace"]) == sections(expected["workspace"])
    assert json.dumps(given["report"]).count("metrics") == json.dumps(expected["report"]).count("metrics") > 0


def test_a_folder_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(tmp_path)]) == 1
    assert "holds no run with a metrics.csv" in capsys.readouterr().err
