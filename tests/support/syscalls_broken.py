"""Code that is broken on purpose, so that a sweep can be seen to fail."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping
from typing import Any

__all__ = ["BROKEN", "break_code"]

_Edit = tuple[str, str, str, str]
_FOLDER: _Edit = ("loader.files", "make_folder", "    fsync_folder(folder.parent)\n", "")
_MARKER: _Edit = (
    "dataprep.engines.local", "StageExecutor.mark_rank_as_completed", "    sync_tree(self.stage_folder)\n", ""
)  # fmt: skip
_CONTENT: _Edit = ("loader.files", "write_atomic", "            os.fsync(file.fileno())\n", "")
_NAME: _Edit = ("loader.files", "write_atomic", "    fsync_folder(path.parent)\n", "")
_IN_PLACE: _Edit = ("loader.files", "write_atomic", "temporary_path(path)", "path")
_MOVE: _Edit = ("dataprep.publish", "_move", "    fsync_folder(place.parent)\n", "")
_SILENT: _Edit = ("loader.files", "write_atomic", "        raise\n", "        return\n")

BROKEN: Mapping[str, tuple[str, str, tuple[_Edit, ...]]] = {
    "names are not synced before a marker": ("least", "", (_FOLDER, _MARKER)),
    "names are not synced at all": ("least", "", (_FOLDER, _MARKER, _NAME)),
    "contents are not synced": ("least", "", (_CONTENT,)),
    "a moved Dataset is not synced": ("least", "", (_MOVE,)),
    "files are written in place": ("torn", r"^write .*/stage\.json$", (_IN_PLACE,)),
    "errors of the disk are not told": ("ENOSPC", r"^write .*-(files\.txt|documents\.npy|sources\.json)$", (_SILENT,)),
}
"""name -> fault that shows it, and where; module, function, text of it, what stands there instead."""


def break_code(name: str) -> None:
    """Break one function in this process and those that it forks, for everybody who has it already; "": none."""
    if not name:
        return
    for module_name, path, old, new in BROKEN[name][2]:
        module = __import__(module_name, fromlist=["*"])
        function: Any = module
        for part in path.split("."):
            function = getattr(function, part)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(old) == 1, (name, source)
        space: dict[str, Any] = dict(vars(module))
        exec(source.replace(old, new), space)  # the test breaks its own copy of the project's code
        function.__code__ = space[function.__name__].__code__
