"""Configuration files: what is accepted, and that each mistake is reported with its place, all of them at once."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
import xxhash
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import ConfigError
from loader.settings import (
    MAX_FILE_BYTES,
    canonical_json,
    child_environment,
    digest_of,
    load_config,
    schema_of,
    store_environment,
    to_plain,
)
from loader.yaml_tree import MAX_DEPTH, MAX_NODES, Node, parse_yaml


@dataclass(frozen=True)
class Filter:
    """A leaf block."""

    name: Literal["alpha", "beta"] = "alpha"
    limit: int | None = None


@dataclass(frozen=True)
class Source:
    """One of many named blocks."""

    root: Path
    ratio: float = 1.0
    files: tuple[str, ...] = ("*.jsonl",)
    span: tuple[int, str] = (0, "a")
    filters: tuple[Filter, ...] = ()


@dataclass(frozen=True)
class TrainTokenizer:
    """First member of a union."""

    train: dict[str, int]


@dataclass(frozen=True)
class LoadTokenizer:
    """Second member of a union."""

    load: str
    strict: bool = True


@dataclass(frozen=True)
class Bounded:
    """Checks itself."""

    low: int = 0
    high: int = 10
    share: Annotated[float, pydantic.Field(gt=0, le=1)] = 0.5

    def __post_init__(self) -> None:
        problems = []
        if self.low >= self.high:
            problems.append("low: must lie below high")
        if self.high > 100:
            problems.append("high: at most 100")
        if self.low == 7:
            problems.append("seven is never right")
        if problems:
            raise ValueError("\n".join(problems))


@dataclass(frozen=True)
class Run:
    """Never part of a digest."""

    workers: int = 1


@dataclass(frozen=True)
class Job:
    """A whole file."""

    output: str
    version: Literal[1] = 1
    seed: int = 17
    sources: dict[str, Source] = field(default_factory=dict)
    tokenizer: TrainTokenizer | LoadTokenizer = LoadTokenizer("x.model")
    bounded: Bounded = Bounded()
    extra: Filter | None = None
    total: int | Literal["all"] = "all"
    weights: list[float] = field(default_factory=list)
    run: Run = Run()


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "job.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def problems_of(path: Path, overrides: tuple[str, ...] = (), cls: type = Job) -> list[str]:
    """The problem lines of a configuration that must fail, with the folder cut off."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, cls, overrides)
    assert caught.value.code == "TR-CONFIG-INVALID"
    assert caught.value.exit_code == 2
    head, *lines = caught.value.message.splitlines()
    assert head.startswith(f"{len(lines)} problem")
    return [line.strip().replace(str(path.parent) + os.sep, "") for line in lines]


def test_a_full_file_becomes_frozen_dataclasses(tmp_path: Path) -> None:
    text = """\
output: out/a
sources:
  web: {root: data/web, ratio: 3, files: [a.jsonl, b.jsonl], span: [2, x]}
  "2024":
    root: /abs
    filters:
      - {name: beta, limit: 5}
      - limit: null
tokenizer: {train: {vocab_size: 3_072}}
extra: {}
total: 12
weights: [1, 2.5e-3, .5]
run: {workers: 4}
"""
    loaded = load_config(write(tmp_path, text), Job)
    job = loaded.config
    assert job.sources["web"] == Source(Path("data/web"), 3.0, ("a.jsonl", "b.jsonl"), (2, "x"))
    assert isinstance(job.sources["web"].ratio, float)
    assert job.sources["2024"].filters == (Filter("beta", 5), Filter())
    assert job.tokenizer == TrainTokenizer({"vocab_size": 3072})
    assert job.extra == Filter()
    assert (job.total, job.weights, job.run.workers) == (12, [1.0, 0.0025, 0.5], 4)
    with pytest.raises(AttributeError):
        job.seed = 3  # type: ignore[misc]


def test_the_digest_covers_defaults_and_not_the_run_block(tmp_path: Path) -> None:
    plain = load_config(write(tmp_path, "output: a\n"), Job)
    assert "run" not in plain.semantic
    assert plain.semantic["seed"] == 17
    assert plain.semantic["bounded"] == {"low": 0, "high": 10, "share": 0.5}
    same = load_config(write(tmp_path, "# comment\nrun: {workers: 9}\nseed: 17\noutput: 'a'\n"), Job)
    other = load_config(write(tmp_path, "output: a\nseed: 18\n"), Job)
    assert same.digest == plain.digest != other.digest
    text = json.dumps(plain.semantic, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert plain.digest == xxhash.xxh3_128_hexdigest(text.encode()) == digest_of(plain.semantic)


def test_an_integer_written_for_a_float_gives_the_same_digest(tmp_path: Path) -> None:
    digests = {
        load_config(write(tmp_path, f"output: a\nweights: [{w}]\n"), Job).digest for w in ("2", "2.0", "+2", "2e0")
    }
    assert len(digests) == 1


def test_every_problem_is_reported_at_once_in_file_order(tmp_path: Path) -> None:
    text = """\
sources:
  web:
    ration: 1
  code: {root: c, ratio: lots, files: c.jsonl, span: [1]}
seed: 1.5
sede: 3
bounded: [1]
extra: {name: bta, limit: many}
run: {workers: true}
seed: 2
"""
    assert problems_of(write(tmp_path, text)) == [
        "job.yaml:1:1: output: missing; this key has no default",
        "job.yaml:2:3: sources.web.root: missing; this key has no default",
        "job.yaml:3:5: sources.web.ration: unknown key; did you mean 'ratio'?",
        "job.yaml:4:26: sources.code.ratio: expected a number, got 'lots'",
        "job.yaml:4:39: sources.code.files: expected a list, got 'c.jsonl'",
        "job.yaml:4:54: sources.code.span: expected 2 items, got 1",
        "job.yaml:5:7: seed: expected an integer, got 1.5",
        "job.yaml:6:1: sede: unknown key; did you mean 'seed'?",
        "job.yaml:7:10: bounded: expected a mapping with keys low, high, share, got a list",
        "job.yaml:8:15: extra.name: expected 'alpha' or 'beta', got 'bta'; did you mean 'beta'?",
        "job.yaml:8:27: extra.limit: expected an integer, got 'many'",
        "job.yaml:9:16: run.workers: expected an integer, got true",
        "job.yaml:10:1: duplicate key 'seed'; first at job.yaml:5:1",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("output: a\nunrelated: 1\n", "job.yaml:2:1: unrelated: unknown key; known keys: output, version, seed"),
        ("output: a\nseed: '3'\n", "job.yaml:2:7: seed: expected an integer, got '3'"),
        ("output: 3\n", "job.yaml:1:9: output: expected a string, got 3"),
        ("output:\n", "job.yaml:1:8: output: expected a string, got nothing (null)"),
        ("output: yes\nseed: yes\n", "job.yaml:2:7: seed: expected an integer, got 'yes'"),
        ("output: a\nseed: 010\n", "job.yaml:2:7: seed: expected an integer, got '010'"),
        ("output: a\nseed: 1:30\n", "job.yaml:2:7: seed: expected an integer, got '1:30'"),
        ("output: a\nversion: 2\n", "job.yaml:2:10: version: expected 1, got 2"),
        ("output: a\ntotal: some\n", "job.yaml:2:8: total: expected an integer or 'all', got 'some'"),
        ("output: a\nweights: [1, {}]\n", "job.yaml:2:14: weights.1: expected a number, got a mapping"),
        ("output: a\nweights: [.inf]\n", "job.yaml:2:11: '.inf' is no float: numbers must be finite"),
        ("output: a\nweights: [.nan]\n", "job.yaml:2:11: '.nan' is no float: numbers must be finite"),
        ("output: a\nweights: [1e999]\n", "job.yaml:2:11: '1e999' is no float: numbers must be finite"),
        ("output: a\nseed: " + "9" * 5000 + "\n", "job.yaml:2:7: '" + "9" * 40 + "...' is no int: more than 40 digits"),
        (
            "output: a\nbounded: {share: 1.5}\n",
            "job.yaml:2:18: bounded.share: Input should be less than or equal to 1, got 1.5",
        ),
        ("output: a\nbounded: {low: 12}\n", "job.yaml:2:16: bounded.low: must lie below high"),
        ("output: a\nbounded:\n  high: -1\n", "job.yaml:2:1: bounded: low: must lie below high"),
        ("output: a\nbounded: {low: 7}\n", "job.yaml:2:1: bounded: seven is never right"),
        ("output: a\n? [1, 2]\n: 3\n", "job.yaml:2:3: a key must be a string, got a collection (quote it)"),
        ("output: a\n3: 4\n", "job.yaml:2:1: a key must be a string, got '3' (quote it)"),
        (
            "output: a\nx: !!python/object:os.system 'ls'\n",
            "job.yaml:2:4: tag '!!python/object:os.system' is not allowed",
        ),
        ("output: a\nx: !local 'ls'\n", "job.yaml:2:4: tag '!local' is not allowed"),
        ("output: a\nx: !!binary aGk=\n", "job.yaml:2:4: tag '!!binary' is not allowed"),
        ("output: a\nseed: !!int x\n", "job.yaml:2:7: 'x' is no int"),
        ("output: a\nextra: {<<: {name: beta}}\n", "job.yaml:2:9: merge keys are not supported"),
        ("output: a\ntokenizer: {}\n", "job.yaml:2:1: tokenizer: expected one of the keys train | load, strict"),
        (
            "output: a\ntokenizer: {lod: x}\n",
            "job.yaml:2:1: tokenizer: expected one of the keys train | load, strict, got lod; did you mean 'load'?",
        ),
        (
            "output: a\ntokenizer: {load: x, train: {}}\n",
            "job.yaml:2:1: tokenizer: load, train exclude each other; choose from train | load, strict",
        ),
        ("output: a\ntokenizer: sp\n", "job.yaml:2:12: tokenizer: expected a mapping, got 'sp'"),
        ("- 1\n", "job.yaml:1:1: expected a mapping with keys output"),
        ("output: [a\n", "job.yaml:2:1: not YAML: expected ',' or ']', but got"),
        ("a: b: c\n", "job.yaml:1:5: not YAML: mapping values are not allowed here"),
        ("output: a\n\tseed: 1\n", "job.yaml:2:1: not YAML: found character '\\t'"),
        ("output: a\n--- \nseed: 1\n", "job.yaml:2:1: not YAML: but found another document"),
        ("output: *nowhere\n", "job.yaml:1:9: not YAML: found undefined alias"),
        ("output: a\nseed: \x07\n", "job.yaml:2:7: not YAML: character"),
        ('output: "\\ud800x"\n', "job.yaml:1:9: '\\ud800x' is no str"),
        (b"output: a\nseed: \xff\n", "job.yaml:2:7: not UTF-8: byte 0xff"),
    ],
)
def test_a_mistake_is_reported_at_its_place(tmp_path: Path, text: str | bytes, expected: str) -> None:
    found = problems_of(write(tmp_path, text))
    assert any(line.startswith(expected) for line in found), found


def test_several_lines_of_one_check_are_several_problems(tmp_path: Path) -> None:
    found = problems_of(write(tmp_path, "output: a\nbounded: {low: 300, high: 200}\n"))
    assert found == ["job.yaml:2:16: bounded.low: must lie below high", "job.yaml:2:27: bounded.high: at most 100"]


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n", "null\n", "\ufeff", "{}"])
def test_an_empty_file_lacks_its_required_keys(tmp_path: Path, text: str) -> None:
    (line,) = problems_of(write(tmp_path, text))
    assert re.fullmatch(r"job\.yaml:\d+:1: output: missing; this key has no default", line)


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "\ufeffoutput: a\r\nseed: 3\r\n"), Job).config == Job("a", seed=3)


def test_aliases_are_values_of_their_own(tmp_path: Path) -> None:
    text = "output: a\nsources: {one: &s {root: r, files: [x]}, two: *s}\n"
    job = load_config(write(tmp_path, text), Job, ["sources.two.ratio=5", "sources.two.files.0=y"]).config
    assert job.sources == {"one": Source(Path("r"), 1.0, ("x",)), "two": Source(Path("r"), 5.0, ("y",))}


def test_bombs_are_refused_and_not_expanded(tmp_path: Path) -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 12))
    (line, *_) = problems_of(write(tmp_path, f"output: a\nl0: &l0 x\n{levels}"))
    assert f"aliases expand to more than {MAX_NODES} values" in line
    (line, *_) = problems_of(write(tmp_path, "output: &o [*o]\n"))
    assert "an alias stands inside the value that it names" in line
    (line, *_) = problems_of(write(tmp_path, "[" * 100_000))
    assert f"nested deeper than {MAX_DEPTH} levels" in line
    (line, *_) = problems_of(write(tmp_path, "weights: [" + "1," * (MAX_NODES + 1) + "]"))
    assert f"more than {MAX_NODES} values" in line


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    for path, word in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=word) as caught:
            load_config(path, Job)
        assert (caught.value.code, caught.value.place) == ("TR-CONFIG-UNREADABLE", str(path))
    with pytest.raises(ConfigError, match="too large"):
        load_config(write(tmp_path, b" " * (MAX_FILE_BYTES + 1)), Job)


def test_overrides_are_applied_in_order_and_typed(tmp_path: Path) -> None:
    path = write(tmp_path, "output: a\nsources: {web: {root: r, files: [x, y]}}\n")
    overrides = [
        "seed=1",
        "seed=2",
        "sources.web.ratio=3e-1",
        "sources.web.files.1=z",
        "sources.new.root=q",
        "extra.name=beta",
    ]
    loaded = load_config(
        path, Job, [*overrides, "weights=[1, 2]", "output=yes", "tokenizer={train: {v: 1}}", "total=all"]
    )
    job = loaded.config
    assert (job.seed, job.output, job.weights, job.extra) == (2, "yes", [1.0, 2.0], Filter("beta"))
    assert job.sources == {"web": Source(Path("r"), 0.3, ("x", "z")), "new": Source(Path("q"))}
    assert job.tokenizer == TrainTokenizer({"v": 1})
    assert (
        loaded.digest
        == load_config(
            path,
            Job,
            ["extra={name: beta}", *overrides[1:5], *["weights=[1, 2]", "output=yes", "tokenizer={train: {v: 1}}"]],
        ).digest
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("sede=3", "--set sede: sede: unknown key; did you mean 'seed'?"),
        ("sources.web.ration=3", "--set sources.web.ration: sources.web.ration: unknown key; did you mean 'ratio'?"),
        ("sources.news.ratio=3", "--set sources.news.ratio: sources.news.root: missing; this key has no default"),
        ("seed=lots", "--set seed: seed: expected an integer, got 'lots'"),
        ("seed=", "--set seed: seed: expected an integer, got nothing (null)"),
        ("output.a=1", "--set output.a: 'output' has nothing called 'a' that could be set"),
        ("sources.web.files.9=1", "--set sources.web.files.9: 'sources.web.files' has nothing called '9'"),
        ("seed", "--set seed: expected key.path=value"),
        ("=3", "--set =3: expected key.path=value"),
        ("a..b=3", "--set a..b=3: expected key.path=value"),
        ("seed=[", "--set seed: not YAML"),
        ("extra={name: gamma}", "--set extra: extra.name: expected 'alpha' or 'beta', got 'gamma'"),
    ],
)
def test_a_wrong_override_is_named(tmp_path: Path, override: str, expected: str) -> None:
    path = write(tmp_path, "output: a\nsources: {web: {root: r, files: [x]}}\n")
    found = problems_of(path, (override,))
    assert any(line.startswith(expected) for line in found), found


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Co", "Cn"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abcxyz_-", min_size=1, max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


def plain_of(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: plain_of(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain_of(child) for child in node.value]
    return node.value


@settings(max_examples=60)
@given(JSON_VALUES)
def test_json_is_read_as_json(value: Any) -> None:
    """YAML 1.2 is a superset of JSON; the oracle is the value that was printed."""
    problems: list[str] = []
    node = parse_yaml(json.dumps(value), "x", problems)
    assert problems == []
    assert node is not None
    assert plain_of(node) == value
    assert repr(plain_of(node)) == repr(value)


@given(st.dictionaries(st.text("abcxyz", min_size=1, max_size=5), st.text("ab01.:-_eox~# \n", max_size=8), max_size=5))
def test_printed_yaml_strings_are_read_back_as_the_same_strings(value: dict[str, str]) -> None:
    """The oracle is PyYAML's printer, with everything quoted."""
    problems: list[str] = []
    node = parse_yaml(yaml.safe_dump(value, default_style='"'), "x", problems)
    assert problems == []
    assert node is not None
    assert plain_of(node) == value


@given(st.text(max_size=60))
def test_any_text_is_a_tree_or_a_list_of_problems(text: str) -> None:
    problems: list[str] = []
    node = parse_yaml(text, "x", problems)
    assert node is not None or problems


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Co", "Cn"]), max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SOURCES = st.builds(
    Source,
    root=st.from_regex(r"[a-z]{1,4}(/[a-z]{1,4}){0,2}", fullmatch=True).map(Path),
    ratio=FLOATS,
    files=st.lists(TEXTS, max_size=3).map(tuple),
    span=st.tuples(st.integers(), TEXTS),
    filters=st.lists(
        st.builds(Filter, st.sampled_from(["alpha", "beta"]), st.none() | st.integers(-99, 99)), max_size=3
    ).map(tuple),
)
JOBS = st.builds(
    Job,
    output=TEXTS,
    seed=st.integers(-(2**60), 2**60),
    sources=st.dictionaries(TEXTS, SOURCES, max_size=3),
    tokenizer=st.builds(TrainTokenizer, st.dictionaries(TEXTS, st.integers(0, 9), max_size=2))
    | st.builds(LoadTokenizer, TEXTS, st.booleans()),
    extra=st.none() | st.builds(Filter),
    total=st.integers(0, 9) | st.just("all"),
    weights=st.lists(FLOATS, max_size=3),
    run=st.builds(Run, st.integers(1, 9)),
)


@settings(max_examples=40)
@given(JOBS)
def test_a_configuration_written_out_is_the_same_configuration(
    tmp_path_factory: pytest.TempPathFactory, job: Job
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_bytes(canonical_json(to_plain(job)))
    loaded = load_config(path, Job)
    assert loaded.config == job
    again = load_config(path, Job, [f"run={{workers: {job.run.workers + 1}}}"])
    assert again.digest == loaded.digest == digest_of(loaded.semantic)


def test_the_schema_agrees_on_unknown_keys() -> None:
    schema = schema_of(Job)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Source"]["additionalProperties"] is False
    assert schema["required"] == ["output"]


def test_plain_data_refuses_what_json_cannot_hold() -> None:
    assert to_plain({"a": (Path("x/y"), {2, 1}, None, True)}) == {"a": ["x/y", [1, 2], None, True]}
    with pytest.raises(TypeError, match="bytes"):
        to_plain({"a": b""})


def test_children_import_ours_and_not_a_users_files(tmp_path: Path) -> None:
    (tmp_path / "loader.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "train.py").write_text("raise SystemExit('shadowed')")
    code = "import loader, train; print(loader.__file__); print(train.__file__)"
    environment = child_environment(TOKENREEL_MARK="1")
    assert environment["TOKENREEL_MARK"] == "1"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    root = Path(__file__).resolve().parents[2]
    assert done.stdout.split() == [str(root / "loader/__init__.py"), str(root / "train/__init__.py")]


def test_stores_can_be_asked_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)

    def nobody(uid: int) -> None:
        raise KeyError(uid)  # as in a container whose user is in no table

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert not store_environment().shared_profile
