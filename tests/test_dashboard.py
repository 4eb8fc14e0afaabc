"""A workspace and a report of what runs have logged: the file says what would be sent, and it is what is sent."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from project.__main__ import main

pytest.importorskip("wandb_workspaces.workspaces")

RUNS = {
    "a": "epoch,step,examples,val/loss,lr-AdamW,own/score,speed/tokens_per_second",
    "b": "epoch,step,val/loss,val/accuracy,train/loss,test/loss,gradient_norm/all",
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "classify"
    for id, header in RUNS.items():
        (folder / id).mkdir(parents=True)
        (folder / id / "metrics.csv").write_text(f"{header}\n0,0,1,1,1\n")
    return folder


def set_project(run: Path, project: str | None) -> None:
    loggers = [
        {"class_path": "project.loggers.MetricsCSV"},
        {"class_path": "project.loggers.WandB", "init_args": {"project": project, "name": None}},
    ]
    (run / "config.yaml").write_text(yaml.safe_dump({"trainer": {"logger": loggers}}))


def sections(workspace: Any) -> dict[str, list[list[str]]]:
    found = workspace["section"]["panelBankConfig"]["sections"]
    return {part["name"]: [panel["config"]["metrics"] for panel in part["panels"]] for part in found}


def panels(definition: Any) -> list[Any]:
    """Settings of all its line plots."""
    if isinstance(definition, dict):
        own = [definition["config"]] if definition.get("viewType") == "Run History Line Plot" else []
        return own + [panel for value in definition.values() for panel in panels(value)]
    return [panel for value in definition for panel in panels(value)] if isinstance(definition, list) else []


def without_ids(definition: Any) -> Any:
    """The ids of panels and sets of runs are new with each definition."""
    if isinstance(definition, dict):
        return {key: without_ids(value) for key, value in definition.items() if key not in ("id", "__id__")}
    return [without_ids(value) for value in definition] if isinstance(definition, list) else definition


def test_without_an_account_the_definition_is_written(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(runs)]) == 0
    definition = json.loads((runs / "dashboard.json").read_text())
    expected = {
        "val": [["val/accuracy"], ["val/loss"]],
        "test": [["test/loss"]],
        "train": [["train/loss"]],
        "learning rate": [["lr-AdamW"]],
        "gradient_norm": [["gradient_norm/all"]],
        "speed": [["speed/tokens_per_second"]],
        "own": [["own/score"]],
    }
    assert sections(definition["workspace"]) == expected and list(sections(definition["workspace"])) == list(expected)
    in_report = [panel["metrics"] for panel in panels(definition["report"])]
    assert in_report == [metrics for section in expected.values() for metrics in section]
    assert "8 panels" in capsys.readouterr().out


def test_one_setting_is_the_x_axis_of_all_panels_of_the_workspace(runs: Path) -> None:
    main(["dashboard", str(runs)])
    definition = json.loads((runs / "dashboard.json").read_text())
    settings = definition["workspace"]["section"]["settings"]
    assert (settings["xAxis"], settings["xAxisActive"]) == ("trainer/global_step", True)
    assert not any("xAxis" in panel for panel in panels(definition["workspace"]))  # which would win over the setting
    in_sections = definition["workspace"]["section"]["panelBankConfig"]["sections"]
    assert not any(section["localPanelSettings"]["xAxisActive"] for section in in_sections)
    assert {panel["xAxis"] for panel in panels(definition["report"])} == {
        "trainer/global_step"
    }  # it has no such setting


class Server(ThreadingHTTPServer):
    """Answers as W&B does to what the library asks, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.entity: str | None = "own"
        self.made: list[tuple[str, dict[str, Any]]] = []  # each kind of view or project, with what was sent of it

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "upsertView" in query:
            self.made.append((variables["type"], variables))
            project = {"id": "1", "name": variables["projectName"], "entityName": variables["entityName"]}
            times = {"createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z"}
            return {"upsertView": {"view": variables | times | {"id": "view-id", "project": project}, "inserted": True}}
        if "upsertModel" in query:
            self.made.append(("project", variables["input"]))
            return {"result": {"project": None, "model": None, "inserted": True}}
        if "models(" in query:
            page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
            return {"models": {"pageInfo": page, "edges": []}}
        return {"viewer": {"id": "1", "entity": self.entity}}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        if self.path != "/graphql":  # the library's own measurements
            return self.send_error(404)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = json.dumps({"data": self.server.answer(body["query"], body.get("variables") or {})}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    import wandb

    with Server() as server:
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        Thread(target=server.serve_forever, daemon=True).start()
        wandb.teardown()  # it reads the environment once
        yield server
        wandb.teardown()
        server.shutdown()


def test_with_an_account_the_same_is_sent(runs: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    written = runs / "new" / "folder" / "dashboard.json"
    assert main(["dashboard", str(runs), "--output", str(written)]) == 0
    assert not server.made
    capsys.readouterr()
    assert main(["dashboard", str(runs)]) == 0, capsys.readouterr().err
    workspace, report = capsys.readouterr().out.splitlines()
    assert workspace.startswith(f"{server.url}/own/classify?nw=")
    assert report == f"{server.url}/own/classify/reports/classify--view-id"
    kinds, made = zip(*server.made, strict=True)
    assert kinds == ("project", "runs", "project-view")  # the report first: it makes the project
    assert (made[0]["name"], made[0]["entityName"]) == ("classify", "own")
    assert all((view["entityName"], view["projectName"]) == ("own", "classify") for view in made[1:])
    expected = json.loads(written.read_text())
    given = {"report": json.loads(made[1]["spec"]), "workspace": json.loads(made[2]["spec"])}
    assert without_ids(given) == without_ids(expected)
    assert main(["dashboard", str(runs), "--entity", "team", "--project", "other"]) == 0
    assert all((view["entityName"], view["projectName"]) == ("team", "other") for _, view in server.made[4:])


def test_what_fails_at_wandb_is_one_line(runs: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.entity = None
    assert main(["dashboard", str(runs)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "name a user or a team by --entity" in error


def test_the_project_is_the_one_that_the_runs_name(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def title() -> str:
        assert main(["dashboard", str(runs), "--output", str(runs / "x.json")]) == 0
        blocks = json.loads((runs / "x.json").read_text())["report"]["blocks"]
        return str(blocks[1]["children"][0]["text"])

    set_project(runs / "a", None)
    assert title() == "All runs of classify."
    set_project(runs / "a", "glosses")
    assert title() == "All runs of glosses."  # b, without W&B, has none
    set_project(runs / "b", None)
    assert main(["dashboard", str(runs)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "in several projects at W&B, classify, glosses: see --project" in error
    assert main(["dashboard", str(runs), "--project", "glosses"]) == 0


def test_a_folder_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(tmp_path)]) == 1
    assert "holds no run with a metrics.csv" in capsys.readouterr().err


def test_what_cannot_be_written_is_one_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(runs), "--output", "/proc/no/dashboard.json"]) == 1
    assert capsys.readouterr().err.startswith("error: cannot write /proc/no/dashboard.json: ")
