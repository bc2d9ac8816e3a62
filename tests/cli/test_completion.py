"""`mstar completion`: the scripts, tried in the shells themselves."""

import shutil
import subprocess

import pytest

from mstar.cli import main


@pytest.fixture
def script(capsys):
    def printed(shell):
        assert main(["completion", shell]) == 0
        return capsys.readouterr().out

    return printed


@pytest.fixture
def complete(script):
    """What bash makes of a line whose last word is not yet complete."""

    def completed(line):
        words = line.split(" ")
        requests = f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; _mstar"
        shell = f'{script("bash")}\n{requests}; printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
        return done.stdout.split()

    return completed


def test_commands_are_completed(complete):
    assert complete("mstar se") == ["serve", "session"]
    assert {"check", "run", "doctor", "top", "completion", "sim"} <= {*complete("mstar ")}


def test_options_are_completed_where_they_belong(complete):
    assert complete("mstar top --on") == ["--once"]
    assert complete("mstar doctor --on") == []
    assert complete("mstar run smollm2 --temp") == ["--temperature"]


def test_commands_of_commands_are_completed(complete):
    assert complete("mstar sim re") == ["replay"]
    assert complete("mstar sim run --scen") == ["--scenarios"]


def test_installed_models_and_known_values_are_completed(complete):
    assert complete("mstar run whis") == ["whisper"]
    assert complete("mstar serve hib") == ["hibari"]
    assert complete("mstar completion fi") == ["fish"]


def test_bash_registers_it(script):
    shell = f"{script('bash')}\ncomplete -p mstar"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout == "complete -o default -F _mstar mstar\n"


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not here")
def test_fish(script):
    requests = 'complete -C "mstar sim run --scen"; complete -C "mstar ser"'
    done = subprocess.run(["fish", "-c", f"{script('fish')}\n{requests}"], capture_output=True, text=True, check=True)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["--scenarios", "serve"]


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not here")
def test_zsh(script):
    shell = f"{script('zsh')}\necho ${{_comps[mstar]}}"
    done = subprocess.run(["zsh", "-f", "-c", shell], capture_output=True, text=True, check=True)
    assert "_mstar" in done.stdout
