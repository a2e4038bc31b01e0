"""datatrove's filters and formatters, by class name: what is there, whether it can run here, and one of them at work.

Only classes that ``datatrove.pipeline.filters`` and ``datatrove.pipeline.formatters`` export are known: a configuration
names no module and gives no code. A filter sees a ``Document`` with a text, an id and no metadata.

What runs depends on what is installed. With datatrove alone: C4ParagraphFilter, RegexFilter, SamplerFilter,
SymbolLinesFormatter, and PIIFormatter with empty replacements. With spaCy also C4QualityFilter, FineWebQualityFilter,
GopherQualityFilter and GopherRepetitionFilter, and with its word list UnigramLogProbFilter. C4BadWordsFilter needs
fasteners and its list, LanguageFilter and FastTextClassifierFilter need fasttext and a model; FTFYFormatter needs ftfy
and texts that it leaves alone. Never: LambdaFilter (takes code), URLFilter (judges a url, and there is none).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import xxhash

from loader.errors import ConfigError
from loader.yaml_tree import did_you_mean

from .options import argument_problems, as_arguments, takes_code

if TYPE_CHECKING:
    from datatrove.pipeline.base import PipelineStep

__all__ = ["DatatroveStep", "datatrove_classes", "make_datatrove"]

_PROBE = """A river that has carried stones for a thousand years knows more about patience than most books will say.
The old mill on its left bank was built by two brothers, who never agreed on anything except the price of flour.
They kept separate ledgers, and one of them, bound in green cloth, is still shown to visitors of the town museum.
Whoever reads it finds weather reports, complaints about taxes, and the names of horses that had to be sold.
When the second brother died in the winter of 1874, the wheel was stopped for a week, although grain was waiting.
Nobody had asked for such a thing, but it seemed right to everyone that the water should pass without working.
Today the building houses a library, and children do their homework where the millstones used to turn all day.
"""
"""Prose that gets past the cheap rules, so that trying a filter on it also loads what its last rule needs."""
_MISSING_PACKAGE = re.compile(r"pip install [^)`]+")


def datatrove_classes() -> dict[str, type]:
    """Every filter and formatter that datatrove exports, by class name."""
    from datatrove.pipeline import filters, formatters
    from datatrove.pipeline.filters.base_filter import BaseFilter
    from datatrove.pipeline.formatters.base import BaseFormatter

    found: dict[str, type] = {}
    for module in (filters, formatters):
        for name, value in sorted(vars(module).items()):
            if (
                inspect.isclass(value)
                and issubclass(value, BaseFilter | BaseFormatter)
                and not inspect.isabstract(value)
            ):
                found[name] = value
    return found


class DatatroveStep:
    """One filter or formatter of datatrove on single texts.

    Where it draws random numbers, its ``seed`` is one per file, made of the seed that was asked for and of what names
    the file, so that neither tasks nor other files change a verdict.
    """

    def __init__(self, kind: type, arguments: Mapping[str, Any]) -> None:
        self.kind = kind
        self.name = kind.__name__
        self._arguments = dict(arguments)
        self._seeded = "seed" in inspect.signature(kind).parameters
        self._step: PipelineStep | None = None if self._seeded else self._make("")

    def _make(self, file: str) -> Any:
        arguments = dict(self._arguments)
        if self._seeded:
            arguments["seed"] = xxhash.xxh3_64_intdigest(f"{arguments.get('seed') or 0}/{file}") >> 1
        return self.kind(**arguments)

    def start_file(self, file: str) -> None:
        """Called before the first text of each file; ``file`` names it on every machine."""
        if self._seeded:
            self._step = self._make(file)

    def apply(self, text: str, name: str) -> tuple[str | None, str]:
        """Why the text is dropped (None: it stays), and the text as it is afterwards; ``name`` is the document's id.

        Raises:
            Exception: whatever the filter raises.
        """
        from datatrove.data import Document

        step: Any = self._step
        if not hasattr(step, "filter"):
            return None, str(step.format(text))
        document = Document(text=text, id=name, metadata={})
        result = step.filter(document)
        keeps, reason = result if isinstance(result, tuple) else (result, None)
        return (None if keeps else str(reason or "dropped")), document.text


def _missing(name: str, place: str, error: BaseException) -> ConfigError:
    """What a filter that cannot run here lacks."""
    command = _MISSING_PACKAGE.search(str(error))
    if isinstance(error, ImportError):
        return ConfigError(
            "TR-QUALITY-MISSING",
            f"{name} needs a package that is not installed: {error}",
            place,
            "every package that the filter needs",
            command.group() if command else "install what the message names",
        )
    if isinstance(error, OSError):
        return ConfigError(
            "TR-QUALITY-MISSING",
            f"{name} needs a file that is not there and cannot be fetched: {type(error).__name__}: {error}",
            place,
            "its model or list in the cache of huggingface_hub, or a way to download it",
        )
    return ConfigError(
        "TR-QUALITY-OPTIONS",
        f"{name} fails on plain text: {type(error).__name__}: {error}",
        place,
        "arguments with which it judges a text alone: there is no url, language or other metadata",
    )


def make_datatrove(name: str, options: Mapping[str, Any], place: str) -> DatatroveStep:
    """The filter or formatter ``name``, tried on a text.

    Raises:
        ConfigError: unknown name, wrong arguments, or it cannot run on this machine.
    """
    known = datatrove_classes()
    if name not in known:
        raise ConfigError(
            "TR-QUALITY-UNKNOWN",
            f"datatrove has no filter or formatter {name!r}{did_you_mean(name, known)}",
            place,
            f"one of {', '.join(sorted(known))}",
        )
    kind = known[name]
    code = takes_code(kind)
    if code is not None:
        message = f"{name} takes a function as {code}, and a configuration holds no code"
        raise ConfigError("TR-QUALITY-OPTIONS", message, place, "a filter that is settled by values")
    given = {key: value for key, value in options.items() if key != "exclusion_writer"}
    problems = argument_problems(kind, given, strict=False)
    if len(given) < len(options):
        problems.append("exclusion_writer: the verdicts are written anyway")
    if problems:
        raise ConfigError("TR-QUALITY-OPTIONS", f"{name}: {'; '.join(problems)}", place, str(inspect.signature(kind)))
    try:
        step = DatatroveStep(kind, as_arguments(kind, given))
        step.start_file("")
        step.apply(_PROBE, "probe")
    except Exception as error:
        raise _missing(name, place, error) from error
    return step
