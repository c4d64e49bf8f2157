"""Several errors at once end a program like one, if all of them are ours."""

from __future__ import annotations

import pytest

from echo_hub import cli
from echo_p2p.errors import ConfigError, ProcessError, lone_cause


def test_the_first_of_ours_is_shown() -> None:
    first, second = ProcessError("the learner ended."), ConfigError("another.")
    group = BaseExceptionGroup("", [BaseExceptionGroup("", [first]), second])
    assert lone_cause(group) is first


def test_an_error_that_is_not_ours_is_not_hidden() -> None:
    assert lone_cause(BaseExceptionGroup("", [ConfigError("ours"), ValueError("a bug")])) is None


def test_the_hub_ends_with_the_code_of_a_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app() -> None:
        raise BaseExceptionGroup("", [ProcessError("the learner ended."), ConfigError("and this")])

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == ProcessError.exit_code
    assert "the learner ended." in capsys.readouterr().err
