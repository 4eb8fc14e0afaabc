"""What is written down of the code."""

from importlib.metadata import version

from project.callbacks.run_record import installed_packages, provenance


def test_versions_are_those_that_packages_say_of_themselves() -> None:
    packages = installed_packages()
    assert {name: packages[name] for name in ("torch", "lightning", "wandb")} == {
        name: version(name) for name in ("torch", "lightning", "wandb")
    }


def test_the_commit_is_the_checkouts() -> None:
    facts = provenance()
    assert facts["git_commit"] is None or len(facts["git_commit"]) == 40
    assert isinstance(facts["git_changes"], list)
