"""Records `shoal demo` as an animated SVG picture: `docs/demo.svg`.

Owns the format of the picture. The frames are those of the live view (`shoal.lab.demo.view`), taken from a real run.

    .venv/bin/python docs/demo_recording.py      takes about a minute and writes docs/demo.svg
"""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType
from rich.terminal_theme import MONOKAI

from shoal.lab.demo.frames import DemoFrame
from shoal.lab.demo.run import DemoOptions, Summary, run_demo
from shoal.lab.demo.view import LiveView, summary_table
from shoal.limits import Limits

PICTURE: Final = Path(__file__).parent / "demo.svg"
SECONDS: Final = 60.0
FRAMES: Final = 14
"""Frames of the live view; the summary follows them."""
SHOWN_S: Final = 1.5
SUMMARY_SHOWN_S: Final = 5.0
COLUMNS, LINES = 100, 32

# Rich fills these in. Classes carry the frame's name, so frames can share one picture.
_FRAME: Final = '<style>{styles}</style><defs>{lines}</defs><g class="frame {unique_id}">{backgrounds}{matrix}</g>'
_PICTURE: Final = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>A recording of shoal demo</title>
<style>
text {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 20px; }}
.frame {{ visibility: hidden; animation: {total_s}s step-end infinite; }}
{animations}
.f{still} {{ visibility: visible; }}
@media (prefers-reduced-motion: reduce) {{ .frame {{ animation: none; }} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#0c0c0c"/>
<g transform="translate(12 12)">
{frames}
</g>
</svg>
"""


def draw(content: RenderableType, frame_id: str) -> str:
    """One frame as a group of SVG elements."""
    screen = Console(record=True, width=COLUMNS, height=LINES, file=io.StringIO(), force_terminal=True)
    screen.print(content)
    return screen.export_svg(title="", theme=MONOKAI, code_format=_FRAME, unique_id=frame_id)


def picture(frames: list[str]) -> str:
    """The frames one after the other, and over again. The last one is shown longer. Without animation the picture
    shows a frame of the middle."""
    total_s = SHOWN_S * (len(frames) - 1) + SUMMARY_SHOWN_S
    animations = []
    for number in range(len(frames)):
        begin = 100 * SHOWN_S * number / total_s
        end = 100.0 if number == len(frames) - 1 else 100 * SHOWN_S * (number + 1) / total_s
        hidden = "" if number == 0 else "0% { visibility: hidden } "
        hidden_again = "" if number == len(frames) - 1 else f" {end:.3f}% {{ visibility: hidden }}"
        animations.append(
            f".f{number} {{ animation-name: show-{number}; }} "
            f"@keyframes show-{number} {{ {hidden}{begin:.3f}% {{ visibility: visible }}{hidden_again} }}"
        )
    return _PICTURE.format(
        width=int(COLUMNS * 12.2) + 24,
        height=int(LINES * 24.4) + 24,
        total_s=total_s,
        still=len(frames) // 2,
        animations="\n".join(animations),
        frames="\n".join(frames),
    )


def record() -> tuple[list[str], Summary]:
    """Runs the demo; returns its frames, evenly spread over the run, and its summary."""
    frames: list[str] = []

    def show(frame: DemoFrame) -> None:
        if frame.elapsed_s >= (len(frames) + 1) * SECONDS / FRAMES and len(frames) < FRAMES:
            frames.append(draw(LiveView(frame), f"f{len(frames)}"))

    options = DemoOptions(seconds=SECONDS, players=200, servers=2, servers_max=6, limits=Limits())
    summary = asyncio.run(run_demo(options, show, lambda text: print(text, file=sys.stderr)))
    return frames, summary


if __name__ == "__main__":
    recorded, outcome = record()
    recorded.append(draw(summary_table(outcome), f"f{len(recorded)}"))
    PICTURE.write_text(picture(recorded))
    sys.exit(0 if outcome.holds else 1)
