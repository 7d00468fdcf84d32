"""Takes the pictures of MLflow in the guide on tracking, with a headless Chromium.

    python docs/images/mlflow_pages.py STATE [CHROMIUM]

STATE is the state folder of a sweep of four points. Needs playwright. Nothing is clicked: the pages
are as `textmill ui` opens them.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

FOLDER = Path(__file__).parent
MAX_BYTES = 200_000
LOADS_MS = 12_000
WIDTH = 1500


def main(state: Path, chromium: str = "/usr/bin/chromium") -> None:
    from playwright.sync_api import sync_playwright

    command = ["textmill", "ui", f"state={state}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    runs = re.search(r"mlflow\s+(\S+)", said)
    if runs is None:
        raise SystemExit(f"textmill ui names no page: {said}")
    base = runs[1].partition("/#/")[0]
    note = sqlite3.connect(state / "mlflow/mlflow.db").execute(
        "select tags.value from tags join runs using (run_uuid) where key = 'mlflow.note.content'"
        " order by start_time desc"
    )
    (text,) = note.fetchone()
    compare = base + re.findall(r"\((/#/compare-runs[^)]*)\)", text)[0]
    expected = {
        "mlflow-runs": (runs[1], {"val_bpb": 1, "optim.lr=": 4}),
        "mlflow-compare": (compare, {"val_bpb": 2, "optim.lr": 2}),
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (address, words) in expected.items():
            page = browser.new_page(viewport={"width": WIDTH, "height": 800})
            page.goto(address, timeout=90_000)
            page.wait_for_timeout(LOADS_MS)
            for word, times in words.items():
                found = page.get_by_text(re.compile(f"^{re.escape(word)}")).all()
                boxes = [box for one in found if (box := one.bounding_box())]
                inside = [
                    box for box in boxes if box["x"] + box["width"] <= WIDTH and box["height"]
                ]
                if len(inside) < times:
                    raise SystemExit(f"{unquote(address)} shows {word} {len(inside)} times")
            file = FOLDER / f"{name}.png"
            page.screenshot(path=file)
            if file.stat().st_size > MAX_BYTES:
                raise SystemExit(f"{file} has {file.stat().st_size:,} bytes")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), *sys.argv[2:])
