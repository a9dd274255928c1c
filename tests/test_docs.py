"""The documentation: commands parse, links lead somewhere, generated pages and messages are current."""

import ast
import importlib.util
import os
import re
import shlex
import shutil
import ssl
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

import protos.errors
from actor.config import ActorOptions
from actor.waiting import Interrupted
from learner.__main__ import COMMANDS
from learner.presets import starting_values
from protos.options import parse, peek
from protos.secrets import read_secret, read_tokens

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# Commands ---------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, str]]:
    """(file, command) for every line of a shell block, and every indented one of an example's
    docstring."""
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip() and not line.startswith("#"):
                    yield name(page), line
        for span in re.findall(
            r"`(seedbed(?:-actor)? [a-z]* ?--[^`…]*)`", page.read_text(encoding="utf-8")
        ):
            yield name(page), span
    for example in EXAMPLES:
        text = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or ""
        for line in re.findall(r"^    (\S.*)", text, re.MULTILINE):
            yield name(example), line


ALL_COMMANDS = sorted(set(commands()))


def check_options(options: type, argv: Sequence[str]) -> None:
    if "--help" not in argv:
        said = (peek(argv, name) for name in ("preset", "env", "agent"))
        preset = starting_values(next(said) or "auto", *said)
        parse(options, argv, prog="docs", description="", preset=preset)


def check_command(words: Sequence[str]) -> None:
    program, *rest = words
    if program == "seedbed":
        check_options(COMMANDS[rest[0]].options, rest[1:])
    elif program == "seedbed-actor":
        check_options(ActorOptions, rest)
    elif program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    elif program == "python" and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]) is not None
    elif program == "python":
        assert (ROOT / rest[0]).is_file()
    else:
        # An installer or a tool of others: known by name, not run.
        assert program in ("pip", "tensorboard", "kubectl", "openssl", "(umask"), program


@pytest.mark.parametrize(("file", "command"), ALL_COMMANDS, ids=lambda text: text[:60])
def test_command_is_accepted(
    file: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [each for each in os.environ if each.startswith("SEEDBED_")]:
        monkeypatch.delenv(variable)
    words = shlex.split(command, comments=True)
    if "--config" in words:
        # The file of a run that the reader has.
        config = tmp_path / words[words.index("--config") + 1]
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text('env = "CartPole-v1"\n')
        monkeypatch.chdir(tmp_path)
    check_command(words)


@pytest.mark.parametrize(
    "command",
    [
        "seedbed train --env X --no-such-option 1",
        "seedbed train --env X --batch-size many",
        "seedbed train",
        "seedbed-actor --envs X",
    ],
)
def test_a_wrong_command_would_be_noticed(command: str) -> None:
    with pytest.raises(SystemExit):
        check_command(shlex.split(command))


def test_commands_are_found() -> None:
    programs = {shlex.split(command, comments=True)[0] for _, command in ALL_COMMANDS}
    assert {"seedbed", "seedbed-actor", "make", "python", "tensorboard"} <= programs
    assert len(ALL_COMMANDS) >= 25


@pytest.mark.parametrize(
    ("page", "example"),
    [("README.md", "ten_lines.py"), ("docs/custom-environments.md", "several_environments.py")],
)
def test_pages_show_the_examples_as_they_are(page: str, example: str) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert block in (ROOT / "examples" / example).read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_recipe_for_certificates_and_a_token_makes_what_the_program_takes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    (recipe,) = [each for each in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "openssl" in each]
    done = subprocess.run(["sh", "-e", "-c", recipe], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(read_tokens(str(tmp_path / "token"))) == 1
    for name in ("ca.key", "tls.key"):
        assert read_secret(str(tmp_path / name), "--tls-key")
    handshake(tmp_path, "learner.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, "another.example.org")


def handshake(folder: Path, name: str) -> None:
    """What a learner with tls.crt and an actor with ca.crt do, in memory; the actor says `name`."""
    of_learner = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_learner.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    of_actor = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    learner = of_learner.wrap_bio(there, back, server_side=True)
    actor = of_actor.wrap_bio(back, there, server_hostname=name)
    for side in (actor, learner, actor):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert actor.getpeercert()


# Links ------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """GitHub's anchors of the headings."""
    headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](#two) [c](other.md) [d](page.md#one) [e](https://f.org)\n")
    assert broken_links(page) == ["#two", "other.md"]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_are_named_exist(page: Path) -> None:
    pattern = r"`((?:actor|learner|protos|docs|examples|tests|benchmarks)/[\w./]*\w\.\w+|\w+\.toml)`"
    made_by_runs = {"config.toml"}
    named = set(re.findall(pattern, page.read_text(encoding="utf-8"))) - made_by_runs
    assert [file for file in sorted(named) if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_that_are_named_exist(page: Path) -> None:
    known = set(re.findall(r"`(--[a-z-]+)`", (ROOT / "docs" / "options.md").read_text(encoding="utf-8")))
    known |= {"--help", "--config", "--no-describe", "--no-calibrate", "--json", "--repeats"}
    assert set(re.findall(r"`(--[a-z-]+)", page.read_text(encoding="utf-8"))) - known == set()


def test_every_page_is_reached_from_the_readme() -> None:
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        reached.add(page)
        links = re.findall(r"\]\(([^)\s#:]+\.md)", page.read_text(encoding="utf-8"))
        ahead += [path for link in links if (path := (page.parent / link).resolve()) not in reached]
    assert set(PAGES) - reached == set()


def test_decisions_are_numbered_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    assert [int(path.name[:4]) for path in pages] == list(range(1, len(pages) + 1))
    titles = [path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for path in pages]
    listed = re.findall(
        r"^(\d+\.) \[(.*)\]\((.*)\)", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [(f"{number} {title}", file) for number, title, file in listed] == [
        (title, path.name) for title, path in zip(titles, pages, strict=True)
    ]


def test_newest_changes_are_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    found = re.search(
        r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found is not None
    assert found[1] == version


# Generated pages --------------------------------------------------------------------------------


def test_options_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_options", ROOT / "docs" / "make_options.py")
    assert spec is not None
    assert spec.loader is not None
    make_options = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_options)
    assert make_options.PAGE.read_text(encoding="utf-8") == make_options.page(), (
        "run: python docs/make_options.py"
    )


# Errors -----------------------------------------------------------------------------------------

ERRORS = {
    kind.__name__
    for kind in [*vars(protos.errors).values(), Interrupted]
    if isinstance(kind, type) and issubclass(kind, protos.errors.SeedbedError)
}


def normal(text: str) -> str:
    """One space for white space, and one … for what differs, however many pieces it is made of."""
    return re.sub(r"…+", "…", " ".join(text.split()))


def template(node: ast.expr) -> str | None:
    """A message as it stands in the code, with … for what is put into it; None if it is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%(?:\.\d)?[sdgf]", "…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or "…" for part in node.values)
    return None


@cache
def texts_and_raised() -> tuple[frozenset[str], frozenset[str]]:
    """All texts in the code, and those of them that errors of the tree are raised with."""
    texts, raised = set(), set()
    for package in ("protos", "actor", "learner"):
        for path in (ROOT / package).rglob("*.py"):
            if "_pb2" in path.name:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.expr) and (text := template(node)) is not None:
                    texts.add(normal(text))
                if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ERRORS and node.args:
                    text = template(node.args[0])
                    raised |= {normal(text)} if text is not None else set()
    return frozenset(texts), frozenset(raised)


def documented() -> list[str]:
    """Messages of errors.md: the spans that begin an item or fill a cell of the table of rows."""
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    items = re.findall(r"^- `(.*)`$", page, re.MULTILINE)
    cells = re.findall(r"^  \| `(.*)` \| `(.*)` \|$", page, re.MULTILINE)
    return [normal(text) for text in [*items, *(text for row in cells for text in row)]]


def test_documented_messages_exist() -> None:
    texts, _ = texts_and_raised()
    # A message may go on in the code, with a hint for example.
    gone = [text for text in documented() if not {text, normal(f"{text}…")} & texts]
    assert gone == [], "errors.md has messages that no code says"


def test_messages_are_documented() -> None:
    _, raised = texts_and_raised()
    assert len(raised) > 60
    known = set(documented()) | {normal(f"{text}…") for text in documented()}
    missing = sorted(raised - known - {"…: …"})
    assert missing == [], "describe these in docs/errors.md, as: - `message`"


def test_every_error_class_is_documented() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == ERRORS
