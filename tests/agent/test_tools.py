"""The tools on a real directory and a real sandbox."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from doubles import call, write

from cudaagent.agent.parse import parse_calls
from cudaagent.agent.tools import ToolBox, cut_middle
from cudaagent.agent.trajectory import ToolCall
from cudaagent.errors import UserError


def run(tools: ToolBox, text: str) -> ToolCall:
    (parsed,) = parse_calls(text, tools.schemas)
    return tools.run(parsed, timeout_s=60)


def sh(tools: ToolBox, command: str) -> ToolCall:
    return run(tools, call("Bash", command=command))


def test_write_read_edit_and_bash_see_the_same_files(tools: ToolBox, workspace: Path) -> None:
    wrote = run(tools, write("kernels/sub/k.cpp", "int a;\nint b;\n"))
    assert (wrote.ok, wrote.result) == (True, "wrote kernels/sub/k.cpp (2 lines)")
    edit = run(tools, call("Edit", path="kernels/sub/k.cpp", old="int b;", new="int c;"))
    assert (edit.ok, edit.result) == (True, "edited kernels/sub/k.cpp at line 2")
    read = run(tools, call("Read", path="kernels/sub/k.cpp"))
    assert read.result == "     1\tint a;\n     2\tint c;"
    assert sh(tools, "echo '// end' >> kernels/sub/k.cpp; cat kernels/sub/k.cpp").result == (
        "int a;\nint c;\n// end"
    )


def test_read_shows_a_part_and_says_what_follows(tools: ToolBox) -> None:
    run(tools, write("kernels/k.cpp", "".join(f"line {n}\n" for n in range(1, 11))))
    part = run(tools, call("Read", path="kernels/k.cpp", offset="4", limit="2"))
    assert part.result == ("     4\tline 4\n     5\tline 5\n(5 more lines; go on with offset 6)")
    for offset in ("11", "0", "-1"):
        assert not run(tools, call("Read", path="kernels/k.cpp", offset=offset)).ok


def test_an_existing_file_is_written_only_when_its_content_was_seen(tools: ToolBox) -> None:
    sh(tools, "echo 1 > notes.txt")
    refused = run(tools, write("notes.txt", "2\n"))
    assert not refused.ok
    assert "Read it before" in refused.result
    assert run(tools, call("Read", path="notes.txt")).ok
    assert run(tools, write("notes.txt", "2\n")).ok
    assert run(tools, write("notes.txt", "3\n")).ok
    sh(tools, "echo 4 > notes.txt")
    stale = run(tools, write("notes.txt", "5\n"))
    assert not stale.ok
    assert "changed" in stale.result


def test_the_untouched_template_may_be_written_unread(tools: ToolBox, workspace: Path) -> None:
    assert run(tools, write("model_new.py", "class ModelNew: ...\n")).ok
    assert (workspace / "model_new.py").read_text() == "class ModelNew: ...\n"


@pytest.mark.parametrize(
    "path",
    "model.py ./model.py /workspace/model.py SKILL.md utils/a.sh utils/new/x .gateway".split(),
)
def test_protected_files_are_refused(tools: ToolBox, workspace: Path, path: str) -> None:
    before = (workspace / "model.py").read_text()
    for text in (write(path, "x"), call("Edit", path=path, old="class", new="x")):
        refused = run(tools, text)
        assert not refused.ok
        assert "protected" in refused.result
    assert (workspace / "model.py").read_text() == before
    assert not (workspace / "utils/new").exists()


@pytest.mark.parametrize(
    ("old", "words"),
    [("int", "occurs 2 times"), ("float", "does not occur"), ("", "old is empty")],
)
def test_edit_replaces_exactly_one_place(tools: ToolBox, old: str, words: str) -> None:
    run(tools, write("kernels/k.cpp", "int a; int b;\n"))
    edit = run(tools, call("Edit", path="kernels/k.cpp", old=old, new="x"))
    assert not edit.ok
    assert words in edit.result


def test_links_made_by_the_agent_lead_nowhere(tools: ToolBox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    sh(tools, f"ln -s {secret} kernels/a.cpp; ln -s {tmp_path} out; ln -s ../model.py m.py")
    for path in ("kernels/a.cpp", "out/secret", "m.py", f"{tmp_path}/secret", "../secret"):
        for text in (
            call("Read", path=path),
            write(path, "x"),
            call("Edit", path=path, old="secret", new="x"),
        ):
            refused = run(tools, text)
            assert not refused.ok
            assert "secret\n" not in refused.result
    assert secret.read_text() == "secret"
    assert not run(tools, write("out/new", "x")).ok
    assert not (tmp_path / "new").exists()


def test_what_tools_write_belongs_to_the_sandboxs_user(tools: ToolBox) -> None:
    run(tools, write("kernels/deep/k.cpp", "int a;\n"))
    changed = sh(tools, "echo x >> kernels/deep/k.cpp && touch kernels/deep/new && echo done")
    assert changed.result == "done"
    assert run(tools, call("Read", path="kernels/deep/k.cpp")).ok


def test_the_working_directory_persists_and_nothing_else(tools: ToolBox) -> None:
    sh(tools, "mkdir -p 'kernels/a b'; cd 'kernels/a b'; export X=1; sleep 100 &")
    assert sh(tools, 'basename "$PWD"; echo "X=$X"').result == "a b\nX="
    assert sh(tools, "cd ../..; rmdir 'kernels/a b'; false").result == "exit status 1"
    assert sh(tools, "test -f SKILL.md && cat; echo end").result == "end"


def test_a_vanished_working_directory_is_said(tools: ToolBox) -> None:
    sh(tools, "mkdir gone; cd gone; rmdir ../gone")
    result = sh(tools, "test -f SKILL.md && echo here").result
    assert "is gone" in result
    assert result.endswith("here")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("exit 3", "exit status 3"),
        ("true", "(no output)"),
        ("echo out; echo err >&2", "out\nerr"),
        ("nonsense-command 2>/dev/null", "exit status 127"),
        ("printf 'a\\n\\nb'", "a\n\nb"),
        ("for i in 1 2; do\n  echo $i $#\ndone", "1 0\n2 0"),
        ("kill -9 $$", "exit status 137"),
    ],
)
def test_bash_says_what_was_printed_and_how_it_ended(
    tools: ToolBox, command: str, expected: str
) -> None:
    done = sh(tools, command)
    assert (done.result, done.ok) == (expected, True)


def test_a_command_without_end_is_stopped(tools: ToolBox) -> None:
    (parsed,) = parse_calls(call("Bash", command="echo begun; sleep 1000"), tools.schemas)
    done = tools.run(parsed, timeout_s=1.0)
    assert not done.ok
    assert done.result.startswith("begun\nstopped: it ran longer than its 1 s")


def test_results_are_cut_in_the_middle(workspace: Path, tools: ToolBox) -> None:
    assert cut_middle("a" * 100, 100) == "a" * 100
    cut = cut_middle("a" * 5000 + "b" * 5000, 200)
    assert len(cut) <= 200
    assert cut.startswith("a")
    assert cut.endswith("b")
    assert "characters cut" in cut
    big = sh(tools, "seq 1 20000")
    assert len(big.result) <= 30000
    assert big.result.startswith("1\n2\n")
    assert big.result.endswith("\n20000")


def test_a_schema_error_runs_nothing(tools: ToolBox) -> None:
    done = run(tools, call("Bash", cmd="touch ran"))
    assert (done.ok, done.schema_error) == (False, True)
    assert "no parameter cmd" in done.result
    assert sh(tools, "test -e ran || echo no").result == "no"


def test_odd_files_are_errors_for_the_agent_only(tools: ToolBox) -> None:
    sh(tools, "mkfifo pipe; head -c 99 /dev/urandom > bin; : > empty")
    assert "not a regular file" in run(tools, call("Read", path="pipe")).result
    assert "not text" in run(tools, call("Read", path="bin")).result
    assert run(tools, call("Read", path="empty")).result == "empty is empty"
    assert "does not exist" in run(tools, call("Read", path="nothing")).result
    assert not run(tools, call("Read", path="kernels")).ok


def test_an_unknown_tool_in_the_settings_is_refused(workspace: Path, tools: ToolBox) -> None:
    with pytest.raises(UserError, match=r"agent\.tools: Grep is none of"):
        ToolBox(workspace, None, names=["Bash", "Grep"])  # type: ignore[arg-type]


def test_descriptors_are_given_back(workspace: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    ToolBox(workspace, None).close()  # type: ignore[arg-type]
    assert len(os.listdir("/proc/self/fd")) == before
