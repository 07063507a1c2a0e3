# SPDX-License-Identifier: MIT
"""The pages of docs/: links lead somewhere, sections that are referred to exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPO = next(p for p in Path(__file__).resolve().parents if (p / "VERSION").exists())
GROUPS = ("decisions", "develop", "reference", "user")
# Built or fetched, and NVIDIA's own: not this project's text.
SKIPPED = {".git", "build", "node_modules", "__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache"}


def tree() -> list[Path]:
    """Every text file of the sources."""
    found = []
    for folder, folders, files in os.walk(REPO):
        folders[:] = [f for f in folders if f not in SKIPPED and not f.endswith(".egg-info")]
        found += [Path(folder, f) for f in files]
    return [p for p in found if p.is_file() and b"\0" not in p.read_bytes()[:4096]]


TEXTS = {p: p.read_text(errors="replace") for p in tree()}
PAGES = [p for p in TEXTS if p.suffix == ".md"]


def name(path: Path) -> str:
    return str(path.relative_to(REPO))


def prose(text: str) -> str:
    """A page without its code blocks; lines keep their numbers."""
    return re.sub(r"^( *)```.*?^\1```$", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)


def anchors(text: str) -> set[str]:
    """GitHub's anchors of a page's headings."""
    heads = re.findall(r"^#+ +(.+)$", prose(text), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


def has_section(text: str, number: str) -> bool:
    return re.search(rf"^##+ {re.escape(number)}\.? ", text, re.M) is not None


def broken_links(page: Path, text: str) -> list[str]:
    """Relative links of one page that lead nowhere, and anchors that no heading has."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(text))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or not there.is_relative_to(REPO):
            broken.append(f"{name(page)}: {target}")
        elif anchor and anchor not in anchors(there.read_text()):
            broken.append(f"{name(page)}: {target}: no such heading")
    return broken


def test_every_relative_link_leads_somewhere():
    assert [line for page in PAGES for line in broken_links(page, TEXTS[page])] == []


def test_a_broken_link_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "REPO", tmp_path)
    (tmp_path / "there.md").write_text("## 1. A heading\n")
    page = tmp_path / "page.md"
    text = "[a](there.md#1-a-heading) [b](gone.md) [c](there.md#2-none) `[d](gone.md)` [e](https://example.org/gone)\n"
    assert broken_links(page, text) == ["page.md: gone.md", "page.md: there.md#2-none: no such heading"]


def headless(text: str) -> list[str]:
    """First rows of tables that no head is above: a blank line cut them off."""
    lines = [line.strip() for line in prose(text).splitlines()]
    starts = [i for i, line in enumerate(lines) if line.startswith("|") and not (i and lines[i - 1].startswith("|"))]
    return [lines[i] for i in starts if not re.fullmatch(r"\|[-|: ]+", lines[i + 1] if i + 1 < len(lines) else "")]


def test_each_table_has_a_head():
    assert [(name(page), row) for page in PAGES for row in headless(TEXTS[page])] == []
    assert headless("| a | b |\n|---|---|\n| 1 | 2 |\n\n| 3 | 4 |\n") == ["| 3 | 4 |"]


def test_pages_that_the_sources_name_exist():
    """Comments, help texts, units and messages name pages by their path from the root, decisions by number too."""
    named, broken = 0, []
    for path, text in TEXTS.items():
        for target in re.findall(r"(?<![\w/.-])docs/[\w./-]+", text):
            target = target.rstrip(".-")
            there = REPO / target
            found = there.exists() or (
                there.parent.name == "decisions" and list(there.parent.glob(f"{there.name}-*.md"))
            )
            named += 1
            if not found:
                broken.append(f"{name(path)}: {target}")
    assert broken == [] and named > 100


def test_pages_that_the_installed_files_name_are_installed():
    """Units name pages by where scripts/install puts them: docs/ becomes /usr/share/doc/cgpu."""
    named = {t for text in TEXTS.values() for t in re.findall(r"/usr/share/doc/cgpu/([\w./-]+\.md)", text)}
    assert named and [t for t in named if not (REPO / t).exists() and not (REPO / "docs" / t).exists()] == []


@pytest.mark.parametrize("prefix", ["/usr", "/opt/x"])
def test_the_installed_pages_lead_to_installed_files(prefix, tmp_path):
    """By link, and by path: docs/user/install.md and deploy/kubernetes are places of the sources."""
    subprocess.run([sys.executable, REPO / "scripts/doc-pages", "tree", prefix, tmp_path], check=True)
    top = Path(f"{tmp_path}{prefix}/share")
    pages = sorted(top.rglob("*.md"))
    assert {top / "doc/cgpu/README.md", top / "doc/cgpu/user/install.md"} <= set(pages)
    assert os.access(top / "cgpu/deploy/kubernetes/certificates", os.X_OK)
    links = 0
    for page in pages:
        text = page.read_text()
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(text))):
            if not re.match(r"[a-z]+:|#", target):
                links += 1
                there = Path(os.path.normpath(page.parent / target.partition("#")[0]))
                assert there.exists() and there.is_relative_to(top), f"{page}: {target}"
        for name_of in re.findall(r"(?<![\w./-])(?:docs/[a-z]+/[a-z0-9-]+\.md|deploy/(?:kubernetes|helm)\S*)", text):
            raise AssertionError(f"{page}: {name_of}")
        for path in re.findall(rf"(?<![\w.-]){prefix}/share/(?:doc/)?cgpu/[\w./-]*\w", text):
            assert Path(f"{tmp_path}{path}").exists(), f"{page}: {path}"
    assert links > 200


def test_no_key_is_installed(tmp_path):
    """Whoever made certificates in the tree has them there still; each file of the project below it is installed."""
    tree, stage = tmp_path / "tree", tmp_path / "stage"
    for one in ("docs", "deploy", "README.md", "CHANGELOG.md", "scripts/doc-pages", "scripts/kube.lock"):
        (tree / one).parent.mkdir(parents=True, exist_ok=True)
        if (REPO / one).is_dir():
            shutil.copytree(REPO / one, tree / one, ignore=shutil.ignore_patterns("pki", "*.key", "*.crt"))
        else:
            shutil.copy2(REPO / one, tree / one)
    ours = [path.relative_to(tree) for one in ("docs", "deploy") for path in (tree / one).rglob("*") if path.is_file()]
    stray = [
        f"deploy/{place}/{name}"
        for place in ("kubernetes", "kubernetes/pki", "kubernetes/out", "helm/cgpu/pki")
        for name in ("ca.key", "ca.crt", "tls.key", "client.key", "client.pem", "openssl.log", ".key", "certs~")
    ] + ["deploy/kubernetes/pki/secret.yaml", str(Path("docs", "tls.key")), "deploy/kubernetes/base/certificates"]
    for one in stray:
        (tree / one).parent.mkdir(parents=True, exist_ok=True)
        (tree / one).write_text("secret")
    subprocess.run([sys.executable, tree / "scripts/doc-pages", "tree", "/usr", stage], check=True)
    there = {path.relative_to(stage / "usr/share") for path in stage.rglob("*") if path.is_file()}
    assert all((stage / "usr/share" / path).read_text(errors="replace") != "secret" for path in there)
    deploy = {path for path in ours if path.parts[:2] in (("deploy", "kubernetes"), ("deploy", "helm"))}
    pages = {Path("doc/cgpu", *path.parts[1:]) for path in ours if path.parts[0] == "docs"}
    assert there == {
        *(Path("cgpu") / path for path in deploy), *pages, Path("doc/cgpu/README.md"), Path("doc/cgpu/CHANGELOG.md"),
        Path("cgpu/kube.lock"),
    }  # fmt: skip
    assert len(deploy) > 25 and len(pages) > 60


def test_man_pages_name_installed_pages(tmp_path):
    page, folder, there = tmp_path / "cgpu.1", "docs", "/usr/share/doc/cgpu"
    form = "({0}/reference/cgpu\\-smi.schema.json), {0}/user/cli.md; x{1}/user/cli.md\n"
    page.write_text(form.format(folder, folder))
    subprocess.run([sys.executable, REPO / "scripts/doc-pages", "text", "/usr", page], check=True)
    assert page.read_text() == form.format(there, folder)


def test_sections_that_are_referred_to_exist():
    """A page's name followed by a section: `docs/user/cli.md` §4, [cli.md](../user/cli.md) §1, §2 and §3."""
    one = r"(?:§|section )(\d+a?)(?:(?:,| and) §(\d+a?))*"
    seen, broken = 0, []
    for path, text in TEXTS.items():
        found = [(REPO / m[1], m[0]) for m in re.finditer(rf"(docs/\w+/[\w-]+\.md)`?,? {one}", text)]
        if path in PAGES:
            found += [(path.parent / m[1], m[0]) for m in re.finditer(rf"\]\(([\w./-]+\.md)\),?\s{one}", prose(text))]
        for page, reference in found:
            for number in re.findall(r"(?:§|section )(\d+a?)", reference):
                seen += 1
                if not has_section(page.read_text(), number):
                    broken.append(f"{name(path)}: {name(page.resolve())} §{number}")
    assert broken == [] and seen > 30


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_holds_pages(group):
    assert list((REPO / "docs" / group).glob("*.md"))


def test_the_groups_are_all_there_is():
    entries = {p.name for p in (REPO / "docs").iterdir()}
    assert entries - {*GROUPS, "architecture.md", "reliability.md", "security.md"} == set()


# ---- files and functions that the pages name ----

# The pages that name most sources, and the least number of each: fewer, and the patterns no longer match.
CODE_PAGES = {
    "docs/architecture.md": 10,
    "CONTRIBUTING.md": 10,
    "docs/user/upgrade.md": 2,
    "docs/reference/policies.md": 2,
}
#: What looks like a file of the tree, a function or a constant of it and is none.
NOT_OURS = {
    "docs/develop/forward.md": {"DIR/results.json"},
    "docs/develop/testing.md": {"usr/"},
    "docs/reference/abi.md": {"src/common/sdk/nvidia/inc/", "src/nvidia/src/kernel/rmapi/resource_list.h"},
    "docs/reference/proc.md": {"N/", "N/C/", "SET_GPU"},
    "docs/security.md": {"cgpu_km/state/nodefs.c: dev_set_uevent_suppress()"},
    "docs/user/daemon.md": {"grants/"},
    "tests/hardware/README.md": {"results/", "rmlever/", "load/", "hw/", "conduct/"},
}
FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)+\.(?:c|h|py|md|json|toml|conf|service|example)|[\w./-]+/|scripts/[\w-]+")
CALL = re.compile(r"(\w+)\(\)")


def items(text: str) -> list[str]:
    """Paragraphs, list items and table rows: what one mention of a file reaches over."""
    return re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.|\|) )|\n(?=\|)", prose(text))


def is_defined(function: str, text: str) -> bool:
    """In C a definition or a table's entry begins at the margin; in Python a def."""
    return re.search(rf"^(?:\w[\w \t*]*?[\s*])?{function}\(|^\s*(?:async )?def {function}\(", text, re.M) is not None


def wrong_mentions(text: str) -> list[str]:
    """Files that are not there, and functions that are not in the file named last before them."""
    wrong = []
    for item in items(text):
        file = None
        for span in re.findall(r"`([^`\n]+)`", item):
            if FILE.fullmatch(span) and not span.startswith("/"):
                file = REPO / span
                if not file.exists() and not (span.endswith("/") and (REPO / "cgpu_km" / span).is_dir()):
                    wrong.append(span)
                continue
            call = CALL.fullmatch(span)
            if call and file and file.is_file() and not is_defined(call[1], file.read_text()):
                wrong.append(f"{name(file)}: {span}")
        wrong += constants_of_other_files(item)
    return wrong


def constants_of_other_files(item: str) -> list[str]:
    """Names in capitals that are in none of the files that the item names."""
    spans = re.findall(r"`([^`\n]+)`", item)
    named = [REPO / span for span in spans if FILE.fullmatch(span)]
    text = "\n".join(path.read_text() for path in named if path.is_file())
    constants = [span for span in spans if re.fullmatch(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+|[A-Z]{4,}", span)]
    return [span for span in constants if text and not re.search(rf"\b{span}\b", text)]


@pytest.mark.parametrize(("page", "least"), CODE_PAGES.items(), ids=lambda v: v if isinstance(v, str) else "")
def test_the_page_names_sources(page, least):
    assert len(re.findall(r"`[\w./-]+/[\w.-]+\.(?:c|py)`", (REPO / page).read_text())) > least


def test_files_and_functions_of_pages_exist():
    found = {name(page): {one for one in wrong_mentions(TEXTS[page]) if not one.startswith("build/")} for page in PAGES}
    assert {page: wrong for page, wrong in found.items() if wrong} == NOT_OURS


def test_a_wrong_mention_is_found():
    here = name(Path(__file__))
    text = (
        f"- `{here}`: `prose()`, `gone()`, `gone/file.c`\n- `gone()` without a file\n| `no/such/folder/` | `{here}` |\n"
        "- `NO_SUCH_NAME` and `CGPU_POLICIES` of `cgpu_km/uapi.h`\n"
    )
    assert wrong_mentions(text) == [f"{here}: gone()", "gone/file.c", "no/such/folder/", "NO_SUCH_NAME"]


def test_the_tests_that_pages_name_exist() -> None:
    files = [path for path in TEXTS if path.suffix == ".py" and (REPO / "tests") in path.parents]
    there = {path.stem for path in files}
    there |= {found for path in files for found in re.findall(r"^ *(?:async )?def (test_\w+)", TEXTS[path], re.M)}
    named = {page: set(re.findall(r"\b(test_\w+)", TEXTS[page])) for page in PAGES}
    assert {path: missing for path, words in named.items() if (missing := words - there)} == {}
    assert len(named[REPO / "CONTRIBUTING.md"]) > 10 < len(named[REPO / "docs/security.md"])


# ---- sizes ----


def sizes_of(text: str) -> dict[str, int]:
    """struct: bytes of `static_assert(sizeof(struct …) <= …)`."""
    return {name: int(size) for name, size in re.findall(r"static_assert\(sizeof\(struct (\w+)\) <= (\d+)\)", text)}


def test_the_sizes_are_those_of_the_code():
    """The kernel holds what it compiles; the page holds the same numbers."""
    code = "\n".join(path.read_text() for path in sorted((REPO / "cgpu_km").rglob("*.[ch]")))
    page = (REPO / "docs/develop/bounds.md").read_text()
    written = {name: int(size) for name, size in re.findall(r"^\| .* \| `(\w+)` \| (\d+) \|$", page, re.M)}
    assert len(written) == 8 and sizes_of(code) == written


def test_each_licence_that_a_file_names_is_there() -> None:
    """Identifiers of SPDX's list; the expression ends with the line or with its comment."""
    named: dict[str, Path] = {}
    for path, text in TEXTS.items():
        for line in text.split("\n", 3)[:3]:
            if found := re.match(
                r"(?:#|//|/\*|<!--|;|--|\{\{/\*) ?SPDX-License-Identifier: ([\w.+ ()-]+?) *(?:\*/|-->|$)", line
            ):
                named |= dict.fromkeys(re.split(r" (?:OR|AND) ", found[1]), path)
    assert set(named) == {path.stem for path in (REPO / "LICENSES").iterdir()}, named
    assert (REPO / "LICENSE").read_text() == (REPO / "LICENSES/MIT.txt").read_text()


@pytest.mark.parametrize("page", ["simulated-driver.md", "nvsim.md"])
def test_the_page_counts_what_of_nvsim_was_compared(page: str) -> None:
    """DIFFERS: where nvsim is not NVIDIA's resource manager, of the calls whose answers are kept."""
    calls = tomllib.loads((REPO / "tests/rm/answers.toml").read_text())
    compared = (REPO / "tests/vm/guest/simulator/test_rm_walk.py").read_text()
    (table,) = re.findall(r"^DIFFERS = \{$(.*?)^\}$", compared, re.M | re.S)
    differ = re.findall(r'^    "(.+)": ', table, re.M)
    assert differ and set(differ) <= calls.keys()
    text = " ".join((REPO / "docs/develop" / page).read_text().split())
    assert re.findall(r"(\d+) (?:statuses, of which|were compared .{0,50}, and) (\d+) differ", text) == [
        (str(len(calls)), str(len(differ)))
    ]


# ---- the width of lines ----

#: Lines that are longer than CONTRIBUTING.md has them. Their number only falls: lower it with them.
COLUMNS, LONG_C, LONG_PAGES = 120, 159, 430


def longer(path: Path) -> int:
    """Tables and code of a page may be longer: they cannot be folded."""
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = (prose(text) if path.suffix == ".md" else text).splitlines()
    return sum(len(line.expandtabs()) > COLUMNS for line in lines if not line.startswith("|"))


def test_new_lines_end_in_time() -> None:
    assert sum(longer(path) for path in TEXTS if path.suffix in (".c", ".h")) <= LONG_C, "fold the new line of C"
    assert sum(map(longer, PAGES)) <= LONG_PAGES, "fold the new line of a page"


def test_a_long_line_is_counted(tmp_path: Path) -> None:
    page, source = tmp_path / "x.md", tmp_path / "x.c"
    wide = "x" * 121
    page.write_text(f"{wide}\n| {wide} |\n```\n{wide}\n```\n{wide}\n")
    source.write_text(f"\t{'x' * 112}\n\t{'x' * 113}\n")
    assert (longer(page), longer(source)) == (2, 1)
