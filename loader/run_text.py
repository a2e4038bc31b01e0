"""The answers of ``locate``, ``skip`` and ``history`` as text for people; the JSON form is the one to rely on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

__all__ = ["history_text", "located_text", "remap_text", "skip_text"]


_MOST_NAMED = 5
"""A mapping or list of an event with more members is counted, not named."""


def _clean(text: str) -> str:
    """One line, without control characters: input files are not trusted with a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def _origin(item: Mapping[str, Any]) -> str:
    return f"{_clean(item['file'])} record {item['record']}"


def located_text(result: Mapping[str, Any]) -> str:
    """The text of any answer of ``locate``."""
    if "samples" in result:
        return "\n".join(_samples_lines(result))
    if "hits" in result:
        return "\n".join(_hit_lines(result))
    if "readings" in result:
        return "\n".join(_reading_lines(result))
    if "by_source" in result:
        return "\n".join(_repeat_lines(result))
    return "\n".join(_place_lines(result))


def _samples_lines(result: Mapping[str, Any]) -> Iterator[str]:
    if "step" in result:
        done = {True: "as recorded", False: "NOT AS RECORDED", None: "not done yet"}[result["matches_ledger"]]
        first, stop = result["first_position"], result["next_position"]
        yield f"branch {result['branch']}, step {result['step']}: positions {first:,} .. {stop:,}, {done}"
    else:
        if result["cut"]:
            yield f"cut: {', '.join(str(position) for position in result['cut'])}"
        if result["behind_end"]:
            first, last = result["behind_end"][0], result["behind_end"][-1]
            yield f"read by no step, as the plan ends before: {first:,} .. {last + 1:,}"
    for sample in result["samples"]:
        step = f"step {sample['step']}, " if "step" in sample else ""
        yield (
            f"{step}position {sample['position']:,}: {_clean(sample['source'])} sample {sample['sample']:,} "
            f"(shard {sample['shard']}, epoch {sample['epoch']})"
        )
        for segment in sample["segments"]:
            masked = "  masked" if segment["masked"] else ""
            tokens = f"tokens {segment['token_start']}:{segment['token_stop']}"
            yield f"  {segment['document']}  {tokens}  {_origin(segment)}  {_bytes(segment)}{masked}"
            if "text" in segment:
                yield f"    {_clean(segment['text'])}"


def _bytes(segment: Mapping[str, Any]) -> str:
    return f"bytes {segment['byte_start']}:{segment['byte_stop']}"


def _hit_lines(result: Mapping[str, Any]) -> Iterator[str]:
    more = " (more were left out)" if result["truncated"] else ""
    yield f"{len(result['hits'])} hits in {result['num_documents']:,} documents{more}"
    for hit in result["hits"]:
        step = f"step {hit['step']}, position {hit['position']:,}: " if "step" in hit else ""
        masked = "  masked" if hit.get("masked") else ""
        place = f"{_clean(hit['source'])} {_origin(hit)} bytes {hit['match_start']}:{hit['match_stop']}"
        yield f"{step}{hit['document']}  {place}{masked}"


def _reading_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"document {result['document']}: {len(result['steps'])} steps before position {result['stop_position']:,}"
    for reading in result["readings"]:
        masked = "  masked" if reading["masked"] else ""
        sample = f"{_clean(reading['source'])} sample {reading['sample']:,}"
        yield f"  step {reading['step']}, position {reading['position']:,}: {sample} {_bytes(reading)}{masked}"
    if result["cut"]:
        yield f"  cut at positions {', '.join(str(position) for position in result['cut'])}"
    if result.get("again_step") is not None:
        yield f"  first read again in step {result['again_step']}"
    if result.get("unknown_before"):
        yield f"  what steps before {result['unknown_before']} read is not known: their Datasets are gone"


def _repeat_lines(result: Mapping[str, Any]) -> Iterator[str]:
    stop = f"before position {result['stop_position']:,}"
    if result["step"] is None:
        yield f"nothing is read twice {stop}"
    else:
        documents = ", ".join(result["documents"][:8]) or "none (masked or padding)"
        yield f"step {result['step']} is the first to read something again ({stop}): documents {documents}"
    for name, found in result["by_source"].items():
        again = "nothing again" if found is None else f"step {found['step']}, position {found['position']:,}"
        yield f"  {_clean(name)}: {again}"
    if result.get("since_step"):
        yield f"  what was read before step {result['since_step']}, from other Datasets, takes no part"


def _place_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"document {result['document']}: {_clean(result['source'])} {_origin(result)}"
    for segment in result["segments"]:
        tokens = f"tokens {segment['token_start']}:{segment['token_stop']}"
        yield f"  shard {segment['shard']} sample {segment['sample']:,} {tokens} {_bytes(segment)}"


def _entry_line(entry: Mapping[str, Any]) -> str:
    parts = [f"{entry['mode']} {entry['kind']}"]
    if entry.get("source"):
        parts.append(_clean(entry["source"]))
    parts += [f"{start:,}:{stop:,}" for start, stop in entry.get("ranges") or ()]
    documents = list(entry.get("documents") or ())
    parts += [document if isinstance(document, str) else f"{document:016x}" for document in documents[:8]]
    if len(documents) > 8:
        parts.append(f"and {len(documents) - 8} more")
    return f"{' '.join(parts)}, from position {entry['stamp']:,} on"


def skip_text(result: Mapping[str, Any]) -> str:
    """The text of ``skip``'s answer."""
    collateral = result["collateral"]
    by = ", ".join(f"{number:06d}" for number in result["cut_already_by"])
    if by and not result["new_tokens"]:
        entries = "entries" if len(result["cut_already_by"]) > 1 else "entry"
        return f"nothing to add: {entries} {by} cut all of its {collateral['tokens']:,} tokens already"
    sources = ", ".join(f"{_clean(name)} {count:,}" for name, count in collateral["by_source"].items()) or "none"
    lines = [
        f"{'entry' if result['written'] else 'would be entry'} {result['number']:06d}: {_entry_line(result['entry'])}",
        f"  cuts {collateral['tokens']:,} tokens of {collateral['documents']:,} documents; samples touched: {sources}",
    ]
    if by:
        lines.append(f"  {result['new_tokens']:,} of these tokens are new; {by} cut the others already")
    if collateral["other_tokens"]:
        tokens, documents = collateral["other_tokens"], collateral["other_documents"]
        lines.append(f"  with them go {tokens:,} tokens of {documents:,} other documents in the same samples")
    return "\n".join(lines)


def remap_text(result: Mapping[str, Any]) -> str:
    """The text of ``remap``'s answer."""
    made = "branch" if result["written"] else "would be branch"
    lines = [f"{made} {result['branch']}, from step {result['step']}, position {result['position']:,} on, reads"]
    lines += [f"  {_clean(entry['path'])} ({entry['digest']})" for entry in result["datasets"]]
    lines += ["instead of", *(f"  {_clean(old['path'])} ({old['digest']})" for old in result["before"]["datasets"])]
    for name, count in (result["consumed"] or {}).items():
        epochs = "epochs not known" if count["epochs"] is None else f"{count['epochs']:.3f} epochs"
        lines.append(f"read so far: {_clean(name)} {count['positions']:,} samples, {epochs}")
    if result["consumed"] is None:
        lines.append(
            f"read so far: not known, as the old Datasets are gone: {_clean(str(result['old_datasets_gone']))}"
        )
    lines += [f"goes on in its order: {_clean(name)}" for name in result["start"]["carried"]]
    lines += [f"begins its order anew though its Dataset stayed: {_clean(name)}" for name in result["begins_anew"]]
    lines += [f"no longer read, as no Dataset given holds it: {_clean(name)}" for name in result["vanished"]]
    budgets = (result["data"].get("exhaustion") or {}).get("max_epochs") or {}
    anew = [_clean(name) for name in budgets if name not in result["start"]["carried"]]
    lines += [f"max_epochs counts from here on: {name}" for name in anew]
    if result["undone_steps"]:
        lines.append(f"{result['undone_steps']} steps behind the checkpoint are done again, on the new data")
    lines += [f"left behind: cut {one['number']:06d}, {_clean(one['why'])}" for one in result["left_behind"]]
    return "\n".join(lines)


def _event_value(value: Any) -> str:
    """One value of an event, short: what is nested deeper is counted here, and whole with ``--json``."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        if value and len(value) <= _MOST_NAMED and not any(isinstance(v, Mapping | list) for v in value.values()):
            return ",".join(f"{_clean(str(key))}:{_event_value(v)}" for key, v in value.items())
        return f"({len(value)} entries)"
    if isinstance(value, list):
        if value and all(isinstance(v, str | int) for v in value) and len(value) <= _MOST_NAMED:
            return ",".join(_clean(str(v)) for v in value)
        detectors = [str(v["detector"]) for v in value if isinstance(v, Mapping) and "detector" in v]
        return ",".join(map(_clean, detectors)) or f"({len(value)} entries)"
    return _clean(str(value))[:80]


def history_text(result: Mapping[str, Any]) -> str:
    """The timeline of ``history``."""
    lines = [f"run {result['run_id']}, on branch {result['current_branch']}"]
    for branch in result["branches"]:
        left = "" if branch["parent"] is None else f" from branch {branch['parent']} at step {branch['from_step']}"
        lines.append(f"branch {branch['branch']}{left}: {_clean(branch['reason'])}")
        for attempt in branch["attempts"]:
            if attempt["steps"] is not None:
                start, stop = attempt["steps"]
                losses = " -> ".join(attempt["losses"])
                lines.append(f"  attempt {attempt['attempt']}: steps {start} .. {stop}, loss {losses}")
            if attempt["damage"] is not None:
                lines.append(f"  attempt {attempt['attempt']}: damaged behind them: {_clean(attempt['damage'])}")
        for skip in result["skips"]:
            if skip["branch"] == branch["branch"]:
                reason = f" ({_clean(skip['reason'])})" if skip.get("reason") else ""
                lines.append(f"  cut {skip['number']:06d}: {_entry_line(skip)}{reason}")
    if result["events"]:
        lines.append("events")
    for event in result["events"]:
        when = datetime.fromtimestamp(event["time_s"], UTC).strftime("%Y-%m-%d %H:%M:%S")
        shown = {key: value for key, value in event.items() if key not in ("kind", "branch", "step", "time_s")}
        details = " ".join(f"{key}={_event_value(value)}" for key, value in shown.items() if value is not None)
        lines.append(
            f"  {when}  branch {event['branch']} step {event['step']}  {_clean(event['kind'])} {details}".rstrip()
        )
    return "\n".join(lines)
