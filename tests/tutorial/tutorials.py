# SPDX-License-Identifier: MIT
"""make tutorial: plays the tutorials' pages in a machine with a simulated GPU. Needs no GPU.

build/tutorial.json has {page, ok, commands} for each page, build/tutorial-*.svg a picture of each; with PICTURES=1 the
pictures beside the pages are replaced too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import pages  # noqa: E402
import picture  # noqa: E402

MACHINES = {"docker": {"DOCKER": "1", "GPUS": "1"},
            "kube": {"DAEMON": "0", "GPUS": "2", "MEM_MIB": "15109,81559", "VM_MEM": "4G"}}  # fmt: skip


def merged(before: list[dict[str, object]], now: list[dict[str, object]]) -> list[dict[str, object]]:
    """The pages of this run in place of those of an earlier one, in the order of PAGES."""
    by_page = {str(one["page"]): one for one in [*before, *now]}
    order = [page for of_kind in pages.PAGES.values() for page in of_kind]
    return [by_page[page] for page in order if page in by_page]


def main() -> int:
    kind = "kube" if os.environ.get("KIND") == "kube" else "docker"
    folder, file = REPO / "build", REPO / f"build/tutorial-{kind}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "vm.harness", "run", f"python tests/tutorial/play.py {kind} {file}"]
    paths = {"PYTHONPATH": str(REPO / "tests"), "TIMEOUT": os.environ.get("TIMEOUT") or "2400"}
    status = subprocess.run(command, env=os.environ | MACHINES[kind] | paths, cwd=REPO, check=False).returncode
    if not file.exists():
        print(f"tutorial: nothing was played, status {status}", file=sys.stderr)
        return status or 1
    played, whole = json.loads(file.read_text()), folder / "tutorial.json"
    file.unlink()
    before = json.loads(whole.read_text()) if whole.exists() else []
    whole.write_text(json.dumps(merged(before, played), indent=1) + "\n")
    for one in played:
        print(f"{one['page']}: {len(one['commands'])} commands, {'ok' if one['ok'] else 'FAILED'}")
        if one["ok"] and one["page"] in picture.SHOWN:
            text = picture.svg(one["page"], one["commands"])
            (folder / f"{Path(one['page']).stem}.svg").write_text(text)
            if os.environ.get("PICTURES"):
                (REPO / one["page"]).with_suffix(".svg").write_text(text)
    print(f"Record: {whole}")
    return status or (0 if all(one["ok"] for one in played) else 1)


if __name__ == "__main__":
    sys.exit(main())
