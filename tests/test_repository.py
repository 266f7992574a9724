"""What holds for the repository as a whole, whoever changed which part of it."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import itertools
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cudaagent.config import Config, load_config, to_dict

ROOT = Path(__file__).parents[1]
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
MAX_LOOP_LINES = 120
TEXT_LIMIT_BYTES = 1 << 20

# Spelt in pieces, so that this file does not contain them.
MACHINE_TEXTS = [
    re.compile(pattern)
    for pattern in (
        r"(?<![\w.])/" + r"work/",
        r"(?<![\w.])/" + r"root\b",
        r"(?<![\w.])/" + r"opt/(wheels|pypi)",
        r"pypi\." + r"org",
        r"pythonhosted\." + r"org",
        r"registry\." + r"npmjs",
        r"deb\." + r"debian\.org",
        r"download\.pytorch\." + r"org",
    )
]


def tracked() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def python_files() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


def test_no_tracked_text_names_a_machine_or_a_registry() -> None:
    found: list[str] = []
    for path in tracked():
        data = path.read_bytes()
        if len(data) > TEXT_LIMIT_BYTES or b"\0" in data:
            continue
        for number, line in enumerate(data.decode(errors="replace").splitlines(), start=1):
            if any(pattern.search(line) for pattern in MACHINE_TEXTS):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found, "\n".join(found)


def test_files_and_functions_are_short() -> None:
    found: list[str] = []
    for path in python_files():
        text = path.read_text()
        name = path.relative_to(ROOT)
        lines = text.count("\n")
        limit = MAX_LOOP_LINES if name == Path("jobs/train.py") else MAX_FILE_LINES
        if lines > limit:
            found.append(f"{name}: {lines} lines, {limit} allowed")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    found.append(f"{name}: {node.name} has {length} lines")
    assert not found, "\n".join(found)


def test_every_module_says_what_it_is_for() -> None:
    missing = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if path.relative_to(ROOT).parts[0] in ("src", "actors", "jobs")
        and path.read_text().strip()
        and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not missing


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of each import in ``path``, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def test_the_library_never_imports_ray() -> None:
    library = (ROOT / "src" / "cudaagent").rglob("*.py")
    guilty = [
        str(path.relative_to(ROOT))
        for path in library
        if any(module.partition(".")[0] == "ray" for module, _ in imports(path))
    ]
    assert not guilty


def test_dependencies_point_downward() -> None:
    upward = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in (ROOT / "src" / "cudaagent").rglob("*.py")
        for module, name in imports(path)
        if path.name != "cli.py"
        and f"{module}.{name}".startswith(("cudaagent.actors", "cudaagent.jobs"))
    ]
    upward += [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in (ROOT / "actors").glob("*.py")
        for module, name in imports(path)
        if f"{module}.{name}".startswith("cudaagent.jobs")
    ]
    assert not upward


def test_no_module_imports_a_private_name_of_another() -> None:
    guilty = [
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path in python_files()
        for module, name in imports(path)
        if module.startswith("cudaagent") and name.startswith("_") and name != "__version__"
    ]
    assert not guilty


def test_the_configuration_loads_without_heavy_libraries() -> None:
    code = (
        "import sys, cudaagent.config, cudaagent.cli\n"
        "cudaagent.cli.build_parser()\n"
        "heavy = {'torch', 'ray', 'vllm', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def config_files() -> list[Path]:
    return sorted((ROOT / "configs").rglob("*.yaml"))


def is_cluster(path: Path) -> bool:
    return "clusters" in path.parts


@pytest.mark.parametrize(
    "path", [p for p in config_files() if not is_cluster(p)], ids=lambda p: p.name
)
def test_every_configuration_loads(path: Path) -> None:
    assert isinstance(load_config(path), Config)


def documented_fields(cls: type[Any]) -> set[str]:
    """Fields of a settings class with a sentence below them."""
    module = sys.modules[cls.__module__]
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls.__name__).body
    return {
        field.target.id
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def settings_classes(instance: Any) -> Iterator[type[Any]]:
    yield type(instance)
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if dataclasses.is_dataclass(value):
            yield from settings_classes(value)


def test_every_option_has_a_sentence_below_it() -> None:
    missing: list[str] = []
    for cls in set(settings_classes(Config())):
        importlib.import_module(cls.__module__)
        documented = documented_fields(cls)
        missing += [
            f"{cls.__name__}.{field.name}"
            for field in dataclasses.fields(cls)
            if field.name not in documented and not str(field.type).endswith("Settings")
        ]
    assert not missing


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def test_every_line_of_the_papers_configuration_names_its_source() -> None:
    path = ROOT / "configs" / "paper.yaml"
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    values = [line for line in lines if not line.startswith("#") and not line.endswith(":")]
    unmarked = [line for line in values if not re.search(r"  # (paper|ours)(:|;|$)", line)]
    assert not unmarked
    assert len(values) == len(set(leaves(yaml.safe_load(path.read_text()))))


def test_the_papers_configuration_has_the_papers_numbers() -> None:
    config = to_dict(load_config(ROOT / "configs" / "paper.yaml"))
    assert config["ppo"]["clip_low"] == 0.2
    assert config["ppo"]["clip_high"] == 0.28
    assert (config["ppo"]["gamma"], config["ppo"]["lam"]) == (1.0, 0.95)
    assert (config["ppo"]["actor_lr"], config["ppo"]["critic_lr"]) == (3e-6, 6e-6)
    assert config["agentic"]["batch"] == config["single_turn"]["batch"] == 1024
    assert config["agentic"]["steps"] == 150
    assert config["agentic"]["max_turns"] == 150
    assert config["evaluation"]["max_turns"] == 200
    assert config["single_turn"]["context_tokens"] == 32768
    assert config["agentic"]["context_tokens"] == 131072
    named = set(leaves(yaml.safe_load((ROOT / "configs" / "paper.yaml").read_text())))
    assert {f"ppo.{key}" for key in config["ppo"]} - named <= {
        "ppo.micro_tokens",
        "ppo.max_skipped_steps",
    }


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"


def test_pins_satisfy_the_ranges() -> None:
    from packaging.requirements import Requirement

    lines = (ROOT / "constraints" / "cpu.txt").read_text().splitlines()
    pins = dict(line.lower().split("==") for line in lines if line and not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *extras["dev"], *extras["docker"]]:
        requirement = Requirement(text)
        assert requirement.name.lower() in pins, text
        assert requirement.specifier.contains(pins[requirement.name.lower()]), text


def test_readme_links_and_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text()
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert link.startswith("https://") or (ROOT / link).exists(), f"{name}: {link}"
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{name}: make {target}"


@pytest.mark.slow
def test_the_wheel_holds_actors_jobs_and_the_workspace_template(tmp_path: Path) -> None:
    packaged = ("src", "actors", "jobs", "pyproject.toml", "README.md", "LICENSE")
    for path in tracked():
        if path.relative_to(ROOT).parts[0] not in packaged:
            continue
        copy = tmp_path / "src" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    out = tmp_path / "wheels"
    done = subprocess.run(
        [*pip, "--no-build-isolation", "-w", str(out), str(tmp_path / "src")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with zipfile.ZipFile(next(out.glob("cudaagent-*.whl"))) as wheel:
        names = set(wheel.namelist())
    for path in tracked():
        name = path.relative_to(ROOT)
        if name.parts[0] in ("actors", "jobs") and path.suffix == ".py":
            assert f"cudaagent/{name.as_posix()}" in names
        if name.parts[:2] == ("src", "cudaagent"):
            assert name.relative_to("src").as_posix() in names
    assert "cudaagent/py.typed" in names
