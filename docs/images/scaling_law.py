"""Takes the picture of scaling laws in the guide on planning, with a headless Chromium.

    textmill train -m experiment=scaling_sweep
    textmill fit-scaling SWEEP --html=PAGE
    python docs/images/scaling_law.py PAGE [CHROMIUM]

Needs playwright.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
WIDTH, MARGIN = 900, 12


def main(page: Path, chromium: str = "/usr/bin/chromium") -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        shown = browser.new_page(viewport={"width": WIDTH, "height": WIDTH})
        shown.goto(page.resolve().as_uri())
        # Both charts, from the sentence above them on.
        first, second = (shown.locator("figure").nth(place) for place in (0, 1))
        top, bottom = first.bounding_box(), second.bounding_box()
        assert top and bottom, f"{page} has no two charts; name a page of textmill fit-scaling"
        height = bottom["y"] + bottom["height"] - top["y"] + 2 * MARGIN
        shown.screenshot(
            path=FOLDER / "scaling-law.png",
            clip={"x": 0, "y": top["y"] - MARGIN, "width": WIDTH, "height": height},
            full_page=True,
        )
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
