"""``export``, ``diff`` and ``schema`` as typed: results on stdout, exit codes, nothing written where nothing may be."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset

from loader.cli import main
from loader.errors import DamageError
from loader.schema import SCHEMAS
from loader.schema_tables import ARROW_TABLES, table_layouts
from loader.settings import child_environment
from loader.shards import layout
from loader.shards.default_mixture import DefaultMixture, DefaultMixtureStage, parse_mixture

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = {"build": "dataprep.config:BuildConfig", "train": "train.config:TrainConfig"}


@pytest.fixture
def made(tmp_path: Path) -> MadeDataset:
    return make_dataset(tmp_path, DatasetSpec(documents={"web": 12, "code": 5}))


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main([str(argument) for argument in arguments])
    return int(code or 0), capsys.readouterr().out


def test_export_plans_writes_and_recognises(
    made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("export", made.path, "--format", "datatrove", "--output", tmp_path / "out", "--source", "web")
    before = sorted(tmp_path.iterdir())
    code, out = call(capsys, *words, "--plan")
    assert (code, "would be written" in out, "web.ds.index" in out) == (0, True, True)
    planned = json.loads(call(capsys, *words, "--plan", "--json")[1])
    assert sorted(tmp_path.iterdir()) == before
    code, out = call(capsys, *words)
    assert (code, "written" in out, made.digest in out) == (0, True, True)
    for file in planned["files"]:
        assert (tmp_path / "out" / file["name"]).stat().st_size == file["size_bytes"]
    code, out = call(capsys, *words, "--json")
    assert (code, json.loads(out)["written"]) == (0, False)
    assert "finished already" in call(capsys, *words, "--plan")[1]


def test_export_errors_have_codes(made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def export(*more: object) -> tuple[int, str]:
        code, out = call(capsys, "export", made.path, "--output", tmp_path / "out", "--json", *more)
        return code, json.loads(out)["error"]["code"]

    assert export("--format", "hdf5") == (2, "TR-EXPORT-FORMAT")
    assert export("--format", "parquet", "--link") == (2, "TR-EXPORT-OPTION")
    assert export("--format", "mds", "--source", "nothing") == (2, "TR-SOURCE-UNKNOWN")
    assert export() == (2, "TR-USAGE")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_bytes(b"x")
    assert export("--format", "mds") == (4, "TR-EXPORT-OTHER")
    (tmp_path / "out" / "mine").unlink()
    shard = made.path / "web" / "shard.00000.mds"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert export("--format", "mds") == (3, "TR-FILE-HASH")
    assert export("--format", "datatrove") == (3, "TR-SAMPLE-HASH")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(("name", "file"), [("hf", "manifest.json"), ("mds", "run.json")])
def test_a_run_is_no_dataset_and_the_message_says_so(
    name: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / file).write_text("{}")
    code, out = call(capsys, "export", tmp_path, "--format", name, "--output", tmp_path / "out", "--json")
    error = json.loads(out)["error"]
    assert (code, error["code"]) == (2, "TR-EXPORT-OPTION")
    assert f"--format {name} writes a" in error["message"]


def test_diff_exits_as_diff_does(made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_dataset(tmp_path, DatasetSpec(documents={"web": 13, "code": 5}), "other")
    code, out = call(capsys, "diff", made.path, made.path)
    assert (code, "the same" in out) == (0, True)
    code, out = call(capsys, "diff", made.path, other.path)
    assert (code, "num_documents: 17 -> 18" in out) == (1, True)
    code, out = call(capsys, "diff", made.path, other.path, "--json", "--examples", "0")
    value = json.loads(out)
    assert (code, value["documents"]["added"]["count"], value["documents"]["added"]["examples"]) == (1, 1, [])
    assert call(capsys, "diff", made.path, tmp_path / "nowhere")[0] == 2
    (other.path / "manifest.json").write_bytes(b"{}")
    assert call(capsys, "diff", made.path, other.path)[0] == 3


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_every_schema_prints_as_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = call(capsys, "schema", name)
    value = json.loads(out)
    assert (code, isinstance(value, dict)) == (0, True)
    assert json.loads(call(capsys, "schema", name, "--json")[1]) == value
    assert name in call(capsys, "schema")[1]
    if name in ("build", "train", "manifest", "export"):
        assert value["$schema"].endswith("2020-12/schema")


def test_an_unknown_schema_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = call(capsys, "schema", "buidl", "--json")
    assert (code, json.loads(out)["error"]["code"]) == (2, "TR-SCHEMA-UNKNOWN")


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_configuration_schemas_have_every_key_and_no_other(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, _, cls = CONFIGS[name].partition(":")
    config = getattr(importlib.import_module(module), cls)
    value = json.loads(call(capsys, "schema", name)[1])
    assert list(value["properties"]) == [field.name for field in dataclasses.fields(config)]
    assert all(part["additionalProperties"] is False for part in value["$defs"].values() if "properties" in part)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda path: path.parent.name)
def test_shipped_configurations_fit_their_schemas(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    yaml = pytest.importorskip("yaml")
    value = json.loads(call(capsys, "schema", path.stem)[1])
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(value)
    jsonschema.Draft202012Validator(value).validate(config)
    for bad in (
        {**config, "misspelt": 1},
        {k: v for k, v in config.items() if k != "output"},
        {**config, "version": 2},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(value).validate(bad)


def test_manifests_and_records_fit_their_schemas(
    made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    call(capsys, "export", made.path, "--format", "mds", "--output", tmp_path / "out", "--link")
    golden = ROOT / "tests/golden/dataset_v1/manifest.json"
    for name, paths in (
        ("manifest", (made.path / "manifest.json", golden)),
        ("export", (tmp_path / "out/export.json",)),
    ):
        validator = jsonschema.Draft202012Validator(json.loads(call(capsys, "schema", name)[1]))
        for path in paths:
            value = json.loads(path.read_bytes())
            validator.validate(value)
            for key in value:
                with pytest.raises(jsonschema.ValidationError):
                    validator.validate({k: v for k, v in value.items() if k != key})


def test_the_mixture_of_a_manifest_fits_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(call(capsys, "schema", "manifest")[1])["properties"]["mixture"]
    validator = jsonschema.Draft202012Validator(schema)
    stages = (DefaultMixtureStage(0, {"web": 1 << 26}), DefaultMixtureStage(512, {"web": 1, "code": (1 << 26) - 1}))
    good = json.loads(json.dumps(DefaultMixture("stop", 900, stages).to_json()))
    validator.validate(good)
    assert parse_mixture(good, {"web", "code"}, "here").to_json() == DefaultMixture("stop", 900, stages).to_json()
    odd = {"start": 100, "weights": {"web": 1 << 26}}
    none = {"start": 0, "weights": {"web": 0}}
    for change in ({"policy": "loop"}, {"total_positions": 0}, {"stages": []}, {"stages": [odd]}, {"stages": [none]}):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({**good, **change})
        with pytest.raises(DamageError):
            parse_mixture({**good, **change}, {"web", "code"}, "here")


def dtype_of(struct: dict[str, Any]) -> np.dtype[Any]:
    fields = struct["fields"]
    return np.dtype(
        {
            "names": [field["name"] for field in fields],
            "formats": [(field["dtype"], tuple(field.get("shape", ()))) for field in fields],
            "offsets": [field["offset"] for field in fields],
            "itemsize": struct["size_bytes"],
        }
    )


def test_layouts_are_those_that_are_written(made: MadeDataset) -> None:
    """A reader made of nothing but the printed layout reads a Dataset's files."""
    tables = table_layouts()
    rows = np.load(made.path / "shards.npy")
    assert rows.dtype == dtype_of(tables["shards.npy"]["row"]) == layout.SHARD_DTYPE
    assert np.load(made.path / "documents.npy").dtype == dtype_of(tables["documents.npy"]["row"])
    data = (made.path / "web/shard.00000.segments").read_bytes()
    parts = tables["SOURCE/shard.NNNNN.segments"]["parts"]
    header = np.frombuffer(data, dtype_of(parts[0]), 1)[0]
    assert data[:8].hex() == tables["SOURCE/shard.NNNNN.segments"]["magic"]
    place = parts[0]["size_bytes"]
    counts = {"num_samples": int(header["num_samples"]), "num_rows": int(header["num_rows"])}
    for part in parts[1:]:
        dtype = dtype_of(part) if "fields" in part else np.dtype(part["dtype"])
        word = part["shape"][0].split(" + ")
        place += dtype.itemsize * (counts[word[0]] + sum(int(more) for more in word[1:]))
    assert place == len(data)
    docs = (made.path / "web/shard.00000.docs").read_bytes()
    header_size, row_size = (part["size_bytes"] for part in tables["SOURCE/shard.NNNNN.docs"]["parts"])
    assert (len(docs) - header_size) % row_size == 0
    assert set(ARROW_TABLES) <= set(tables)
    assert tables["removed.parquet"]["columns"][0] == {"name": "document", "type": "uint64"}


def test_the_verbs_import_nothing_heavy(made: MadeDataset, tmp_path: Path) -> None:
    script = (
        "import sys; from loader.cli import main\n"
        f"data, out = {str(made.path)!r}, {str(tmp_path / 'out')!r}\n"
        "codes = [main(['export', data, '--format', form, '--output', out + form, '--quiet'])"
        " for form in ('mds', 'megatron', 'datatrove')]\n"
        "codes += [main(['diff', data, data]), main(['schema'])]\n"
        "heavy = {'torch', 'pyarrow', 'numba', 'datatrove', 'streaming'} & set(sys.modules)\n"
        "sys.exit(1 if heavy or any(codes) else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=child_environment(PYTHONPATH=str(ROOT)),
        timeout=60,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
