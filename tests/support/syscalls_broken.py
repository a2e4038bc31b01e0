"""Code that is broken on purpose, so that a sweep can be seen to fail."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping
from typing import Any

__all__ = ["BROKEN", "break_code"]

BROKEN: Mapping[str, tuple[str, str, str, str]] = {
    "folders are not synced": ("loader.files", "make_folder", "    fsync_folder(folder.parent)\n", ""),
    "names are not synced before a marker": ("dataprep.engines.local", "StageExecutor.mark_rank_as_completed",
                                             "    sync_tree(self.stage_folder)\n", ""),
    "contents are not synced": ("loader.files", "write_atomic", "            os.fsync(file.fileno())\n", ""),
    "names are not synced": ("loader.files", "write_atomic", "    fsync_folder(path.parent)\n", ""),
    "files are written in place": ("loader.files", "write_atomic", "temporary_path(path)", "path"),
    "a moved Dataset is not synced": ("dataprep.publish", "_move", "    fsync_folder(place.parent)\n", ""),
    "a removed folder keeps its name": ("loader.files", "remove_folder", "        os.rename(folder, aside)\n",
                                        "        shutil.rmtree(folder); return\n"),
    "errors of the disk are not told": ("loader.files", "write_atomic", "        raise\n", "        return\n"),
}  # fmt: skip
"""name -> module, function, text of it, what stands there instead."""


def break_code(name: str) -> None:
    """Break one function in this process and those that it forks, for everybody who has it already; "": none."""
    if not name:
        return
    module_name, path, old, new = BROKEN[name]
    module = __import__(module_name, fromlist=["*"])
    function: Any = module
    for part in path.split("."):
        function = getattr(function, part)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, (name, source)
    space: dict[str, Any] = dict(vars(module))
    exec(source.replace(old, new), space)  # the test breaks its own copy of the project's code
    function.__code__ = space[function.__name__].__code__
