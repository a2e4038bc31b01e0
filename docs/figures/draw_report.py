"""Draw the README's picture of a report from a run: `python docs/figures/draw_report.py RUN [TARGET.png]`.

Writes the run's report as `tokenreel report` does and photographs its beginning with Chromium (Debian: `apt-get install
chromium`). RUN of the picture in the README: `tokenreel demo --seed 11`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from train.report.run_report import write_run_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH, HEIGHT = 1080, 1960
COLOURS = 256
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
)  # fmt: skip


def draw(run: Path, target: Path) -> None:
    """Write the picture of the report of `run` to `target`, in few colours, so that it stays small."""
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        sys.exit(f"no Chromium here ({', '.join(NAMES)})")
    with tempfile.TemporaryDirectory() as folder:
        page, shot = write_run_report(run, Path(folder) / "report.html"), Path(folder) / "shot.png"
        size = (f"--window-size={WIDTH},{HEIGHT}", "--virtual-time-budget=20000")
        place = (f"--user-data-dir={folder}/profile", f"--screenshot={shot}", page.resolve().as_uri())
        subprocess.run([program, *FLAGS, *size, *place], check=True, stderr=subprocess.DEVNULL)
        Image.open(shot).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)


if __name__ == "__main__":
    default = Path(__file__).resolve().parent / "report.png"
    draw(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else default)
