"""The command line: an explicit table of verbs, each imported when called, and the one place that maps errors to exits.

Exit codes: 0 done or nothing to do, 1 failed, 2 usage or configuration, 3 damage found, 4 refused, 130 interrupted.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .errors import ConfigError, TokenreelError, file_system_error
from .yaml_tree import did_you_mean

__all__ = ["VERBS", "check_packages", "group", "main"]

# verb -> ("module:function", the one line that `tokenreel --help` shows without importing the module)
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("loader.demo:demo", "The whole story on text that every Python installation holds."),
    "decontaminate": ("dataprep.cli:decontaminate", "Screen documents by quality filters and for benchmark items."),
    "dedup": ("dataprep.cli:dedup", "Read and deduplicate; lists every removal with its witness."),
    "mix": ("dataprep.cli:mix", "Everything up to the token budget of each source."),
    "build": ("dataprep.cli:build", "Raw documents to a dataset of packed token shards."),
    "repack": ("dataprep.dataset_verbs:repack", "Another sequence length, without tokenising again."),
    "import": ("dataprep.dataset_verbs:import_tokens", "Token sets of MDS, Megatron or datatrove as a dataset."),
    "plan": ("train.plan.cli:plan", "What a configuration would take: tokens, memory, hours, price; writes nothing."),
    "train": ("train.cli:train", "Train, watch for spikes, roll back, cut, go on; resumes by itself."),
    "inspect": ("loader.dataset_cli:inspect", "Digests, counts and shares of a dataset."),
    "verify": ("loader.dataset_cli:verify", "Every checksum and invariant, and files that nothing names."),
    "locate": ("loader.run_cli:locate", "Which documents did this step see; which steps see this document."),
    "skip": ("loader.run_cli:skip", "Cut steps, positions, samples or documents from a run's future."),
    "replay": ("train.cli:replay", "The identical batches again: text, loss and gradient norm of each segment."),
    "evaluate": ("train.evaluate.cli:evaluate", "Held-out loss and benchmark tasks of a checkpoint."),
    "rollback": ("train.cli:rollback", "Move a run back to a checkpoint; its history is kept."),
    "remap": ("loader.remap_cli:remap", "Go on with other data where those of a run truly changed."),
    "history": ("loader.run_cli:history", "Branches, spikes, cuts and resumes of a run as a timeline."),
    "report": ("loader.report_cli:report", "One self-contained HTML page about a dataset or a run."),
    "export": (
        "loader.interop_cli:export",
        "A dataset as MDS, Megatron, datatrove or Parquet files; a run's model for transformers.",
    ),
    "diff": (
        "loader.interop_cli:diff",
        "What differs between two datasets or two runs; exits with 1 if anything does.",
    ),
    "schema": ("loader.interop_cli:schema", "JSON Schema of configurations, and the layout of every table."),
    "doctor": ("loader.doctor.cli:doctor", "What is missing on this machine, or for a configuration at hand."),
}
_PACKAGES = ("loader", "dataprep", "train")


class _LazyGroup(click.Group):
    """A click group over ``VERBS``: a verb's module is imported when the verb is called or asked for its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order of the work."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command behind a verb; None for an unknown one."""
        if cmd_name not in VERBS:
            return None
        module_name, _, function_name = VERBS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module_name), function_name)
        assert isinstance(command, click.Command), f"{VERBS[cmd_name][0]} is no click command"
        command.name = cmd_name
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a hint for a misspelt verb."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            raise click.UsageError(f"no verb '{args[0]}'{did_you_mean(args[0], VERBS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of verbs, from the table alone."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, line) for verb, (_, line) in VERBS.items()])


def _version() -> str:
    try:
        return importlib.metadata.version("tokenreel")
    except importlib.metadata.PackageNotFoundError:
        return "0+clone"


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(_version(), prog_name="tokenreel")
@click.option("--debug", is_flag=True, help="Show the traceback of an unexpected error.")
def group(debug: bool) -> None:
    """Raw documents to token shards to a trained model, and from any training step back to its documents."""


def check_packages() -> None:
    """Refuse to start when a file of the user's shadows one of the three packages.

    Raises:
        ConfigError: ``TR-IMPORT-SHADOWED``, naming the file that would be imported instead.
    """
    root = Path(__file__).resolve().parent.parent
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if found != root / name / "__init__.py":
            raise ConfigError(
                "TR-IMPORT-SHADOWED",
                f"`{name}` is not tokenreel's own package",
                str(found) if found else "the package cannot be found",
                str(root / name),
                "unset PYTHONPATH, or rename that file",
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; the installed command's entry point.

    With ``--json`` an error is one JSON document ``{"error": {...}}`` on stdout; without, it is text on stderr.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        check_packages()
        result = group.main(args=words, prog_name="tokenreel", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, click.Abort):
        sys.stderr.write("\ninterrupted; what was finished is kept, and the same command goes on from there\n")
        return 130
    except BrokenPipeError:
        _close_stdout()
        return 1
    except TokenreelError as error:
        return _fail(error, words)
    except click.ClickException as error:
        return _fail(_usage_error(error), words)
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        return _fail(file_system_error(error) or _unexpected(error), words)
    return result if isinstance(result, int) else 0


def _usage_error(error: click.ClickException) -> ConfigError:
    context: Any = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tokenreel"
    return ConfigError("TR-USAGE", error.format_message(), None, None, f"{command} --help")


def _unexpected(error: Exception) -> TokenreelError:
    message = f"unexpected {type(error).__name__}: {error}"
    return TokenreelError("TR-INTERNAL", message, _innermost(error), None, "the same command after `tokenreel --debug`")


def _innermost(error: Exception) -> str | None:
    """Where an unexpected error came from, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else None


def _fail(error: TokenreelError, words: Sequence[str]) -> int:
    """Print an error in the form that was asked for; its exit code."""
    if "--json" in words:
        sys.stdout.write(json.dumps({"error": error.to_json()}, ensure_ascii=False) + "\n")
    else:
        sys.stderr.write(f"{error}\n")
    return error.exit_code


def _close_stdout() -> None:
    """Keep the interpreter from complaining once more about a reader (`| head`) that went away."""
    try:
        sys.stdout.close()
    except BrokenPipeError:
        pass


if __name__ == "__main__":
    sys.exit(main())
