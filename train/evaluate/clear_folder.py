"""Remove a folder in which a stranger did as it liked: nested however deep, with whatever rights."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["clear_folder"]


def clear_folder(parent: Path, name: str) -> int:
    """Remove the folder ``name`` of ``parent`` with all that is in it, and say how many entries that was.

    A folder found on the way is first moved up into ``parent``, under a number: so no path grows long, no call nests
    and one folder is open at a time. Links are removed, never followed.

    Args:
        parent: ours alone to write, with nothing in it that a number names.

    Raises:
        OSError: something cannot be removed.
    """
    count = 0
    place = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        waiting = [name]
        while waiting:
            current = waiting.pop()
            os.chmod(current, 0o700, dir_fd=place)
            folder = os.open(current, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            try:
                with os.scandir(folder) as found:
                    entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
                for entry, is_folder in entries:
                    count += 1
                    if is_folder:
                        os.chmod(entry, 0o700, dir_fd=folder)  # what is not ours to write cannot be moved
                        os.rename(entry, str(count), src_dir_fd=folder, dst_dir_fd=place)
                        waiting.append(str(count))
                    else:
                        os.unlink(entry, dir_fd=folder)
            finally:
                os.close(folder)
            os.rmdir(current, dir_fd=place)
    finally:
        os.close(place)
    return count
