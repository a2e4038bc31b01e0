"""report.html of a Dataset: where every document went, what the mix made of the sources, what was rejected. Written
from the manifest
alone, without times or places, so that it is the same for the same Dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loader.files import write_atomic
from loader.page import Block, Chart, Facts, Prose, Section, Table, render_page

from .screen_report import BENCHMARK_COLUMNS, QUALITY_COLUMNS, benchmark_rows, quality_rows

__all__ = ["dataset_page", "write_dataset_report"]


def write_dataset_report(path: Path, out: Path | None = None) -> Path:
    """Write the report of the Dataset at ``path`` to ``out``; returns where it is.

    Raises:
        DamageError: the manifest is damaged.
    """
    from loader.shards.dataset import read_manifest

    manifest = read_manifest(path)
    where = out if out is not None else path / "report.html"
    write_atomic(where, dataset_page(manifest.config, manifest.accounting, manifest.tokenizer).encode())
    return where


def dataset_page(config: Mapping[str, Any], accounting: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> str:
    """The page as HTML.

    Args:
        config: semantic configuration, as in the manifest.
        accounting: of ``dataprep.account.account``.
        tokenizer: as in the manifest.
    """
    sources = {source["name"]: accounting["sources"][source["name"]] for source in config["sources"]}
    if "import" in config:
        sections = [
            Section("Imported records", _imported(config["import"], sources)),
            Section("Samples", _samples(config, sources)),
            Section("Tokenizer", [_tokenizer(tokenizer)]),
            Section("Configuration", [Facts(_flat(config))]),
        ]
        return render_page("Dataset", sections, f"{len(sources)} sources, imported, seed {config['seed']}")
    sections = [
        Section("Where every document went", _funnel(sources, config["sources"])),
        Section("Bytes of text", _bytes(sources)),
        *_screens(accounting.get("screens", {})),
        *([Section("Deduplication", _dedup(config["dedup"], accounting["dedup"]))] if "dedup" in accounting else []),
        Section("Mix", _mix(accounting["mix"], accounting.get("mixture", ()))),
        Section("Samples", _samples(config, sources)),
        Section("Tokenizer", [_tokenizer(tokenizer)]),
        Section("Configuration", [Facts(_flat(config))]),
    ]
    return render_page("Dataset", sections, f"{len(sources)} sources, seed {config['seed']}")


def _imported(rule: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> list[Block]:
    """What came in as tokens."""
    rows = [
        [
            name,
            row["files"],
            row["records"],
            row["empty"],
            row["trained"],
            row["trained_bytes"] if rule["bytes"] else "-",
        ]
        for name, row in sources.items()
    ]
    words = (
        f"Token sets of format {rule['format']}. Every record is a document: records = documents + empty ones "
        "(checked). Bytes of text are known with a lossless tokenizer alone."
    )
    return [Prose(words), Table(["source", "files", "records", "empty", "documents", "bytes of text"], rows)]


def _fates(sources: Mapping[str, Mapping[str, Any]]) -> dict[str, list[int]]:
    """Fate -> documents of each source; ways of being removed that took nothing anywhere are left out."""
    rows = list(sources.values())
    methods = [method for method in rows[0]["removed"] if any(row["removed"][method] for row in rows)]
    fates = {"trained": [row["trained"] for row in rows], "held out": [row["held_out"] for row in rows]}
    fates |= {method: [row["removed"][method] for row in rows] for method in methods}
    return {**fates, "rejected": [row["rejected"] for row in rows]}


def _funnel(sources: Mapping[str, Mapping[str, Any]], settings: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Law 1, by source, as table and as bars."""
    fates = _fates(sources)
    rows = [
        [name, row["records"], *(counts[i] for counts in fates.values())]
        for i, (name, row) in enumerate(sources.items())
    ]
    rows.append(["total", *(sum(row[i] for row in rows) for i in range(1, len(fates) + 2))])
    traces = [{"type": "bar", "name": fate, "x": list(sources), "y": counts} for fate, counts in fates.items()]
    law = Prose("Every record is in exactly one column: records = trained + held out + removed + rejected (checked).")
    opted_out = [f"Source {s['name']} opted out of: {', '.join(s['opt_out'])}." for s in settings if s["opt_out"]]
    return [
        law,
        *(Prose(text) for text in opted_out),
        Table(["source", "records", *fates], rows),
        Chart("Documents of each source by what became of them.", traces, {"barmode": "stack"}),
        Prose(
            "Each removal with its witness or reason: removed.parquet. Each passage that was cut: cuts.parquet. Each "
            "rejected record with its reason: rejected.parquet."
        ),
    ]


def _bytes(sources: Mapping[str, Mapping[str, Any]]) -> list[Block]:
    rows = [
        [
            name,
            row["bytes"],
            row["trained_bytes"],
            row["held_out_bytes"] - row.get("held_out_cut_bytes", 0),
            row.get("trained_cut_bytes", 0) + row.get("held_out_cut_bytes", 0),
            sum(row["removed_bytes"].values()),
        ]
        for name, row in sources.items()
    ]
    return [Table(["source", "in", "trained", "held out", "cut", "removed"], rows)]


def _screens(screens: Mapping[str, Any]) -> list[Section]:
    """What quality filters and decontamination did, where the job had them."""
    sections = []
    if "quality" in screens:
        rows = quality_rows(screens["quality"])
        table: Block = Table(list(QUALITY_COLUMNS), rows) if rows else Prose("No document was dropped.")
        sections.append(Section("Quality", [table]))
    if "decontaminate" in screens:
        report = screens["decontaminate"]
        rule = report["rule"]
        words = (
            f"A document is contaminated by an item if it holds at least {rule['threshold']:.0%} of the item's "
            f"distinct {rule['n']}-grams. Action: {rule['action']}. Every hit: contamination.parquet."
        )
        table = Table([head for head, _ in BENCHMARK_COLUMNS], benchmark_rows(report))
        sections.append(Section("Decontamination", [Prose(words), table]))
    return sections


def _dedup(config: Mapping[str, Any], dedup: Mapping[str, Any]) -> list[Block]:
    """What was compared, and how near removed documents were to what stayed."""
    figures = {name.replace("_", " "): value for name, value in dedup["figures"].items() if not isinstance(value, dict)}
    missing = dedup["figures"]["without_order_key"]
    unranked = {f"{name}: documents that {config['keep']} cannot rank": count for name, count in missing.items()}
    facts = {"methods": ", ".join(config["methods"]), "decision": config["decision"], "threshold": config["threshold"]}
    blocks: list[Block] = [Facts({**facts, "keep": config["keep"], **figures, **unranked})]
    if dedup["removed_by_similarity"]:
        bins = dedup["removed_by_similarity"]
        trace = {"type": "bar", "x": list(bins), "y": list(bins.values())}
        blocks.append(Chart("Documents removed, by exact similarity to their witness (1.00: equal).", [trace], {}))
    if figures["superseded"]:
        blocks.append(Prose("Documents that would have been better than an earlier one: superseded.parquet."))
    return blocks


def _mix(rows: list[Mapping[str, Any]], mixture: Sequence[Mapping[str, Any]]) -> list[Block]:
    """What was planned and kept of each source, and the stages of the default mixture where it has any."""
    table = [
        [
            row["source"],
            row["available_tokens"],
            row["planned_tokens"],
            row["kept_tokens"],
            f"{100 * row['ratio']:.2f} %",
            f"{100 * row['share']:.2f} %",
            f"{100 * row.get('error', row['share'] - row['ratio']):+.3f} %",
            f"{row['epochs']:.3f}",
        ]
        for row in rows
    ]
    heads = ["source", "available tokens", "planned", "kept", "planned share", "realised share", "error", "epochs"]
    blocks: list[Block] = [Table(heads, table), Prose("The realised shares are the default mixture of training.")]
    if any(row.get("thinned_documents") for row in rows):
        thinned = {row["source"]: row["thinned_documents"] for row in rows if row.get("thinned_documents")}
        blocks.append(Prose("Available tokens are estimated where documents were left out before they were tokenised:"))
        blocks.append(Facts(thinned))
    if mixture:
        stages = [
            [row["start"], row["positions"], source, f"{100 * value['share']:.4f} %", f"{100 * value['error']:+.1e} %"]
            for row in mixture
            for source, value in row["sources"].items()
        ]
        blocks.append(Table(["from position", "positions", "source", "share of tokens", "error"], stages))
    return blocks


def _samples(config: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> list[Block]:
    """Samples and padding of each source, and what packing did to its documents."""
    rows, packed = [], []
    for name, row in sources.items():
        places = row["trained_tokens"] + row["padding_tokens"]
        padding = f"{100 * row['padding_tokens'] / places:.3f} %" if places else "-"
        samples = places // config["pack"]["seq_len"]
        rows.append([name, row["trained_tokens"], samples, row["padding_tokens"], padding])
        rows[-1].append(row.get("validation_tokens", 0))
        if "packing" in row:
            counts = row["packing"]
            segments = f"{counts['segments'] / samples:.2f}" if samples else "-"
            packed.append([name, segments, counts["long_documents"], counts["long_pieces"], counts["fitting_cut"]])
    heads = ["source", "tokens", "samples", "padding tokens", "padding", "validation tokens"]
    blocks: list[Block] = [Table(heads, rows)]
    if packed:
        pack = config["pack"]
        words = (
            f"Packed by {pack['strategy']}: a document of more than {pack['seq_len']:,} tokens is split over samples "
            "(nothing of it is lost); one that fits is cut by concat alone."
        )
        heads = ["source", "segments a sample", "longer than a sample", "their pieces", "fitting, but cut"]
        blocks += [Prose(words), Table(heads, packed)]
    return blocks


def _tokenizer(tokenizer: Mapping[str, Any]) -> Facts:
    names = ("kind", "vocab_size", "lossless", "bos_id", "eos_id", "pad_id", "digest")
    return Facts({name: tokenizer[name] for name in names if name in tokenizer})


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    """Nested configuration as dotted keys."""
    if isinstance(value, Mapping) and value:
        flat: dict[str, object] = {}
        for key, item in sorted(value.items()):
            flat.update(_flat(item, f"{prefix}.{key}" if prefix else str(key)))
        return flat
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        flat = {}
        for number, item in enumerate(value):
            name = item.get("name", number) if isinstance(item, Mapping) else number
            flat.update(_flat(item, f"{prefix}.{name}"))
        return flat
    return {prefix: ", ".join(map(str, value)) if isinstance(value, list) else value}
