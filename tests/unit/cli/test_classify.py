"""`classify`: reports in, one line for each out (domain.md section 11)."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_restore.cli.classify import EXIT_BAD_LINE, EXIT_OK, classify_lines

FIXTURES = Path(__file__).parents[2] / "fixtures"
MSR = "Failed to set all KVM MSRs for this vCPU. Only a partial write was done."
MISSING = "Failed to open snapshot file: No such file or directory (os error 2)"


def run(text: str, *, output: str = "json") -> tuple[int, list[str]]:
    stdout = io.StringIO()
    code = classify_lines(io.StringIO(text, newline=None), stdout, output=output)
    return code, stdout.getvalue().splitlines()


def run_json(text: str) -> tuple[int, list[dict[str, str]]]:
    code, lines = run(text)
    return code, [json.loads(line) for line in lines]


def classes(text: str) -> list[str]:
    return [answer["class"] for answer in run_json(text)[1]]


# ---------------------------------------------------------------------------- JSON lines


def test_every_report_of_the_fixture_gets_its_class() -> None:
    reports: list[dict[str, str]] = yaml.safe_load(
        (FIXTURES / "load-failures.yaml").read_text(encoding="utf-8")
    )
    text = "".join(json.dumps({"message": report["text"]}) + "\n" for report in reports)
    code, answers = run_json(text)
    assert code == EXIT_OK
    assert [answer["class"] for answer in answers] == [report["class"] for report in reports]


def test_every_real_answer_gets_a_line() -> None:
    answers: list[dict[str, Any]] = json.loads(
        (FIXTURES / "firecracker-load-failures.json").read_text(encoding="utf-8")
    )
    bodies = [answer["body"] for answer in answers if answer["http_status"] == 400]
    _, told = run_json("\n".join(json.dumps({"message": body}) for body in bodies))
    assert len(told) == len(bodies)
    assert "unknown" not in {answer["class"] for answer in told}


def test_the_answer_has_class_component_and_why() -> None:
    code, answers = run_json(json.dumps({"message": MISSING}) + "\n")
    assert code == EXIT_OK
    assert answers == [
        {
            "class": "missing",
            "component": "snapshot file",
            "why": "the snapshot file is not there: "
            '"snapshot file: No such file or directory (os error 2)"',
        }
    ]


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"code": "cpu-incompatible"}),
        json.dumps({"code": "cpu-incompatible", "message": "load refused"}),
        json.dumps({"code": "cpu-incompatible", "message": None}),
        json.dumps({"code": "E42", "message": MSR}),
        json.dumps({"fault_message": MSR}),
        json.dumps({"error": MSR}),
        json.dumps({"message": json.dumps({"code": "cpu-incompatible", "message": "refused"})}),
        json.dumps({"message": json.dumps({"fault_message": MSR})}),
        "  " + json.dumps({"message": MSR}) + "\r",
        "\ufeff" + json.dumps({"message": MSR}),
    ],
)
def test_a_line_that_is_itself_a_report(line: str) -> None:
    assert run_json(line)[0] == EXIT_OK
    assert classes(line) == ["cpu-incompatible"]
    assert classes(f"{line}\n{line}\n") == ["cpu-incompatible"] * 2


def test_only_the_message_of_a_line_speaks() -> None:
    line = json.dumps({"message": "exit status 1", "expected": MSR, "class": "usage"})
    assert classes(line) == ["unknown"]


def test_a_message_may_hold_every_separator_of_lines() -> None:
    message = f"a\nb\r\nc\u2028d\x0be\x85f {MSR}"
    for ascii_only in (True, False):
        line = json.dumps({"message": message}, ensure_ascii=ascii_only)
        assert classes(f"{line}\n{line}\n") == ["cpu-incompatible"] * 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{broken", "not a JSON object"),
        ("plain text", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("null", "not a JSON object"),
        ("42", "not a JSON object"),
        ('"text"', "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ("9" * 10_000, "not a JSON object"),
        ("{}", 'no "message"'),
        ('{"text": "x"}', 'no "message"'),
        ('{"Message": "x"}', 'no "message"'),
        ('{"message": null}', '"message" is null'),
        ('{"message": 7}', '"message" is a number'),
        ('{"message": 7.5}', '"message" is a number'),
        ('{"message": true}', '"message" is a boolean'),
        ('{"message": ["x"]}', '"message" is a list'),
        ('{"message": {"a": "x"}}', '"message" is an object'),
        ('{"message": 7, "code": "E42"}', '"message" is a number'),
    ],
)
def test_a_bad_line_is_answered_in_its_place(line: str, problem: str) -> None:
    good = json.dumps({"message": MSR})
    code, answers = run_json(f"{good}\n{line}\n{good}\n")
    assert code == EXIT_BAD_LINE
    assert [a["class"] for a in answers] == ["cpu-incompatible", "unknown", "cpu-incompatible"]
    assert answers[1]["component"] == ""
    assert answers[1]["why"].startswith(f"line 2 is no report: {problem}")


def test_a_bad_first_line_among_json_lines() -> None:
    good = json.dumps({"message": MSR})
    code, answers = run_json(f"oops\n{good}\n{good}\n")
    assert code == EXIT_BAD_LINE
    assert [a["class"] for a in answers] == ["unknown", "cpu-incompatible", "cpu-incompatible"]


def test_an_empty_line_among_json_lines_is_an_empty_report() -> None:
    good = json.dumps({"message": MSR})
    assert run_json(f"{good}\n\n{good}\n")[0] == EXIT_OK
    assert classes(f"{good}\n\n{good}\n") == ["cpu-incompatible", "unknown", "cpu-incompatible"]


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]))
        | st.dictionaries(st.sampled_from(["message", "code", "x"]), st.text() | st.none()).map(
            json.dumps
        ),
        max_size=6,
    )
)
@settings(max_examples=200, deadline=None)
def test_as_many_lines_out_as_in(lines: list[str]) -> None:
    first = json.dumps({"message": "x"})
    for output in ("json", "text"):
        _, answers = run("\n".join([first, *lines]) + "\n", output=output)
        assert len(answers) == len(lines) + 1


# ---------------------------------------------------------------------------- plain text


@pytest.mark.parametrize(
    "text",
    [
        MSR,
        f"{MSR}\n",
        f"Error: restore failed\n\nCaused by:\n    0: {MSR}\n    1: x\n",
        # Multi-line JSON, and Firecracker's JSON with a bare line break, are one report.
        json.dumps({"message": MSR}, indent=2),
        '{"error":\n' + json.dumps({"message": MSR}) + "\n}",
        '{ "error": "' + MSR + '\nAll previous unanswered requests will be dropped." }',
        json.dumps(MSR),
        # A cut report is no JSON line.
        json.dumps({"code": "cpu-incompatible", "message": MSR})[:-30],
        # A log with one line of JSON.
        "starting\nloading\n" + json.dumps({"message": MSR}) + "\nexit status 1\n",
    ],
)
def test_one_text_is_one_report(text: str) -> None:
    assert run_json(text)[0] == EXIT_OK
    assert classes(text) == ["cpu-incompatible"]


@pytest.mark.parametrize("text", ["", "\n", "  \n\n"])
def test_no_text_is_an_unknown_report(text: str) -> None:
    code, answers = run_json(text)
    assert code == EXIT_OK
    assert [answer["class"] for answer in answers] == ["unknown"]
    assert "says nothing" in answers[0]["why"]


# ---------------------------------------------------------------------------- lines to read


def test_readable_lines() -> None:
    text = "\n".join(json.dumps({"message": message}) for message in (MISSING, "exit status 1"))
    assert run(text, output="text") == (
        EXIT_OK,
        [
            "missing          snapshot file      the snapshot file is not there: "
            '"snapshot file: No such file or directory (os error 2)"',
            "unknown          -                  no known cause in the report, which says "
            '"exit status 1"',
        ],
    )


def test_a_report_cannot_write_to_the_terminal() -> None:
    text = json.dumps({"code": "host\x1b[2J\n", "message": "\x1b]0;title\x07\x1b[31mred\r\nx"})
    _, lines = run(text, output="text")
    assert len(lines) == 1
    assert lines[0].isprintable()


def test_bytes_that_are_no_text() -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"\xff\xfe " + MSR.encode()), encoding="utf-8")
    written = io.BytesIO()
    stdout = io.TextIOWrapper(written, encoding="ascii")
    assert classify_lines(stdin, stdout, output="text") == EXIT_OK
    stdout.flush()
    assert written.getvalue().startswith(b"cpu-incompatible")


def test_letters_that_the_terminal_does_not_have() -> None:
    written = io.BytesIO()
    stdout = io.TextIOWrapper(written, encoding="ascii")
    assert classify_lines(io.StringIO("é broke"), stdout, output="text") == EXIT_OK
    stdout.flush()
    assert b"\\xe9 broke" in written.getvalue()


# ---------------------------------------------------------------------------- documentation


def examples() -> list[tuple[str, str, str]]:
    """Input, output format and answer of the examples in docs/failure-classes.md."""
    page = Path(__file__).parents[3] / "docs" / "failure-classes.md"
    block = page.read_text(encoding="utf-8").split("```console\n")[1].split("```")[0]
    found = []
    for example in block.strip().split("\n\n"):
        command, answer = example.split("\n")
        text = command.removeprefix("$ echo '").rpartition("' | ")[0]
        found.append((text, "json" if command.endswith("-o json") else "text", answer))
    return found


@pytest.mark.parametrize(("text", "output", "answer"), examples())
def test_examples_in_the_documentation(text: str, output: str, answer: str) -> None:
    assert run(text + "\n", output=output) == (EXIT_OK, [answer])
