"""Small text files, read and written."""

from pathlib import Path

import pytest

from project.errors import UserError
from project.files import read_json, read_yaml, write_whole


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a: [", "is no YAML"), (b"a: \xff", "is no YAML: .*utf-8"), (b"- 1", "no keys and values")],
)
def test_a_broken_configuration_is_refused_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_yaml(file)
    assert str(file) in str(error.value) and "\n" not in str(error.value)


def test_a_slip_in_a_file_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text("a: é", encoding="utf-8")
    with pytest.raises(UserError, match=r"No such file or directory; did you mean .*/tiny\.yaml\?"):
        read_yaml(tmp_path / "tyny.yaml")
    with pytest.raises(UserError, match=r"No such file or directory$"):
        read_yaml(tmp_path / "nowhere" / "tiny.yaml")
    assert read_yaml(tmp_path / "tiny.yaml") == {"a": "é"}


@pytest.mark.parametrize(("content", "message"), [(b"{", "is no JSON"), (b"\xff", "is no JSON"), (b"[]", "no keys")])
def test_a_broken_record_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    assert read_json(file) == {}
    file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_json(file)
    with pytest.raises(UserError, match=r"cannot read .*directory"):
        read_json(tmp_path)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_whole(file, "old é")
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "new \ud800")
    assert file.read_bytes() == "old é".encode()
    write_whole(file, "new")
    assert [other.name for other in tmp_path.iterdir()] == ["a.txt"] and file.read_text() == "new"
