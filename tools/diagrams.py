"""Draw the mermaid diagrams of the pages as docs/images/diagrams/HASH.svg, for the site.

    npm pack mermaid && tar xf mermaid-*.tgz
    python tools/diagrams.py package/dist/mermaid.min.js

needs Chromium on the path. Pictures of diagrams that no page has any more are removed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from site_hooks import DOCS, ROOT, diagram_file

PAGE = """<html><body><pre id="svg"></pre><script src="{library}"></script><script>
mermaid.initialize({{startOnLoad: false, theme: "neutral", htmlLabels: false, flowchart: {{htmlLabels: false}}}});
mermaid.render("diagram", {source}).then(made => {{ document.getElementById("svg").textContent = made.svg; }});
</script></body></html>"""


def draw(source: str, library: Path) -> str:
    """Return the SVG of *source*, drawn by the mermaid *library* in Chromium."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        # labels without HTML, so that a picture needs no browser's fonts
        plain = re.sub(r"</?b>", "", source)
        page.write_text(
            PAGE.format(library=library.resolve().as_uri(), source=json.dumps(plain)),
            encoding="utf-8",
        )
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=20000",
            "--dump-dom",
        ]
        command = ["chromium", *options, "--allow-file-access-from-files", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    match = re.search(r'<pre id="svg">(&lt;svg.*?)</pre>', done.stdout, re.S)
    if not match:
        raise SystemExit(f"mermaid drew nothing of:\n{source}")
    text = match[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return text + "\n"


def main() -> None:
    """Draw what is missing."""
    library = Path(sys.argv[1])
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    sources = [
        s
        for p in pages
        for s in re.findall(r"^```mermaid\n(.*?)^```", p.read_text(encoding="utf-8"), re.M | re.S)
    ]
    wanted = {DOCS / diagram_file(source): source for source in sources}
    for path, source in wanted.items():
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(draw(source, library), encoding="utf-8")
    for path in {*(DOCS / "images" / "diagrams").glob("*.svg")} - wanted.keys():
        path.unlink()


if __name__ == "__main__":
    main()
