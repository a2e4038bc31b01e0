"""Patterns over listings mean what pathlib means by them on a disk; what a URL may be, and what is shown of errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.remote.globs import Pattern, list_folders
from loader.remote.store import open_store
from loader.remote.store_failures import redact, url_problem

FILES = (
    "a.jsonl",
    "b.jsonl.gz",
    ".hidden.jsonl",
    "x/a.jsonl",
    "x/.jsonl",
    "x/y/a.jsonl",
    "x/y/z/b.jsonl",
    "x-1/a.jsonl",
    "x y/[a].jsonl",
    "A.JSONL",
    "é/ü.jsonl",
)
PARTS = [
    "**",
    "*",
    "*.jsonl",
    "?",
    "x",
    "x*",
    "[xy]",
    "[!x]*",
    "a.jsonl",
    ".*",
    "*.jsonl.gz",
    "y",
    "[a-",
    "é",
    ".",
    "*[*",
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=5))
@example(["**", "*.jsonl"])
@example(["x", "**", "**", "*.jsonl"])
@example(["x", "y", "a.jsonl"])
def test_patterns_mean_what_pathlib_means(tree: Path, parts: list[str]) -> None:
    text = "/".join(parts)
    if not text.strip("./"):
        return
    wanted = {path.relative_to(tree).as_posix() for path in tree.glob(text) if not path.is_dir()}
    pattern = Pattern(text)
    assert {name for name in FILES if pattern.matches(name)} == wanted
    folder = pattern.folder
    assert all(not folder or name.startswith(f"{folder}/") for name in wanted), "what is listed holds every match"
    if pattern.literal is not None:
        assert wanted <= {pattern.literal}


def test_only_the_folders_that_can_match_are_listed() -> None:
    for patterns, folders in (
        (["**/*.jsonl", "**/*.jsonl.gz"], [""]),
        (["crawl/2024/**/*.jsonl", "crawl/2024/x/*.jsonl", "books/*.jsonl"], ["books", "crawl/2024"]),
        (["crawl/a*/*.jsonl", "crawl-b/*.jsonl"], ["crawl", "crawl-b"]),
        (["crawl/one.jsonl"], []),
        (["x/*", "**/y"], [""]),
    ):
        assert list_folders([Pattern(pattern) for pattern in patterns]) == folders


def test_a_pattern_of_many_stars_is_no_trap() -> None:
    pattern = Pattern("/".join(["**", "a*a*a*a*a*b"] * 20) + "/x")
    assert not pattern.matches("/".join(["a" * 50] * 200))


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:CANARYpass@bucket/x",
        "https://CANARYuser@host/x",
        "https://host/x?X-Amz-Signature=CANARY",
        "https://host/x#CANARY",
        "s3://user:CANARY/pass@bucket/x",
        "s3://",
        "s3:///CANARY",
        "S3://CANARY/x",
        "s3://bucket/../CANARY",
        "s3://bucket//CANARY",
        "simplecache::s3://CANARY/x",
        "s3://bucket/a\x01CANARY",
    ],
)
def test_a_url_that_is_none_or_holds_credentials_is_refused_unrepeated(url: str) -> None:
    problem = url_problem(url)
    assert problem is not None
    assert "CANARY" not in problem


def test_good_urls() -> None:
    stores = ["s3://b", "s3://b/", "s3://b/c d/é", "hf://datasets/a/b", "memory://x", "abfss://c@acc/x"]
    for url in [*stores, "https://h:80/x", "http://[::1]:80/x"]:
        assert url_problem(url) is None, url
    assert open_store("https://host/x/").url == "https://host/x"


def test_no_credential_is_in_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t/CANARY+1")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "tokenCANARY2")
    monkeypatch.setenv("HF_TOKEN", "hf_CANARY34567")
    shown = redact(
        "Error performing GET https://me:CANARY5@h/x?sig=CANARY6&se=1 in 1ms - Authorization s3cr3t/CANARY+1"
        " s3cr3t%2FCANARY%2B1 tokenCANARY2 hf_CANARY34567 - status 403 Forbidden:"
        ' <?xml version="1.0"?><Error><Code>SignatureDoesNotMatch</Code><Message>no match</Message>'
        "<AWSAccessKeyId>CANARY7</AWSAccessKeyId><StringToSign>CANARY8</StringToSign></Error>\n\nDebug source: CANARY9"
    )
    assert "CANARY" not in shown
    assert "https://***@h/x?***" in shown
    assert "SignatureDoesNotMatch" in shown
    assert "no match" in shown
