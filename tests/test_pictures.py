"""Every picture in results/ and docs/ can be drawn again: results/figures.sh says how."""

import re
import subprocess

from conftest import REPO

SCRIPT = (REPO / "results/figures.sh").read_text()


def test_every_committed_picture_has_a_command():
    listed = subprocess.run(["git", "ls-files", "results", "docs"], cwd=REPO, text=True,
                            capture_output=True, check=True)  # fmt: skip
    pictures = [name for name in listed.stdout.split() if name.endswith((".png", ".gif"))]
    assert len(pictures) > 10
    for name in pictures:
        folder, file = name.rsplit("/", 1)
        by_name = name in SCRIPT or file in SCRIPT
        in_a_loop = file.removesuffix(".png") in SCRIPT and f"{folder}/$figure.png" in SCRIPT
        assert by_name or in_a_loop, name


def test_every_picture_that_a_page_shows_is_committed_and_the_rest_is_not_forgotten():
    """The script writes nothing that no page shows or names."""
    written = set(re.findall(r"(?:--out|--gif) (results/\S+\.(?:png|gif))", SCRIPT))
    assert written
    pages = [*REPO.glob("*.md"), *REPO.glob("docs/*.md"), *REPO.glob("notebook/*.md")]
    text = "".join(page.read_text() for page in [*pages, REPO / "results/README.md"])
    for name in written:
        if "$" not in name:
            assert name.removeprefix("results/") in text, name
