"""GSM8K: its file, the prompts, the verdicts, and the command."""

import json
from decimal import Decimal

import pytest
from command_line import looped
from completions import completion
from engines import SMALL_FLAGS, make_llm

from looped.errors import LoopedError, UsageError
from looped.evaluation.gsm8k import GradeAnswer, GradeEvaluation, evaluate_gsm8k
from looped.evaluation.gsm8k_problems import GradeProblem, read_gsm8k
from looped.evaluation.gsm8k_prompts import WORKED_EXAMPLES, few_shot_messages, few_shot_prompt
from looped.evaluation.gsm8k_report import gsm8k_page
from looped.evaluation.number_extraction import flexible_number, strict_number
from looped.sched import ExitMode, ExitOptions, FinishReason

PROBLEMS = [
    {"question": "Tom has 3 pens and buys 4. How many?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"},
    {"question": "A car costs $1,500 more than $250. How much?", "answer": "…\n#### 1,750"},
    {"question": "What is 3 - 8?", "answer": "#### -5", "extra": 1},
]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text("\n".join(map(json.dumps, PROBLEMS)) + "\n\n")
    return path


def test_problems_are_read_with_their_numbers(data):
    problems = read_gsm8k(data)
    assert [problem.number for problem in problems] == [Decimal(7), Decimal(1750), Decimal(-5)]
    assert problems[0].question == PROBLEMS[0]["question"]
    assert read_gsm8k(data, 2) == problems[:2]


def test_line_separators_of_unicode_do_not_end_a_line(tmp_path):
    path = tmp_path / "data.jsonl"
    line = json.dumps({"question": "one\u2028two", "answer": "#### 1"}, ensure_ascii=False)
    path.write_text(f"{line}\r\n{line}", encoding="utf-8")
    assert [problem.question for problem in read_gsm8k(path)] == ["one\u2028two"] * 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 4: "),
        ("[1]", "line 4: expected {.question.: text"),
        ('{"question": "q"}', "line 4: expected {.question.: text"),
        ('{"question": " ", "answer": "#### 1"}', "line 4: expected {.question.: text"),
        ('{"question": "q", "answer": 7}', "line 4: expected {.question.: text"),
        ('{"question": "q", "answer": "7"}', 'line 4: expected an answer that ends in "#### N"'),
        ('{"question": "q", "answer": "#### x"}', "it ends in '#### x'"),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(data, line, message):
    data.write_text(data.read_text().rstrip() + "\n" + line + "\n")
    with pytest.raises(UsageError, match=message):
        read_gsm8k(data)


def test_lines_past_the_limit_are_not_looked_at(data):
    data.write_text(data.read_text().rstrip() + "\n{\n")
    assert len(read_gsm8k(data, 3)) == 3
    with pytest.raises(UsageError, match="line 4"):
        read_gsm8k(data, 4)


def test_the_worked_examples_arrive_where_they_say():
    for example in WORKED_EXAMPLES:
        number = strict_number(example.answer)
        assert number is not None
        assert flexible_number(example.answer) == number


def test_a_prompt_is_plain_text_that_ends_where_the_answer_begins():
    prompt = few_shot_prompt("How many?", 2)
    assert prompt.count("Question: ") == 3
    assert prompt.count("The answer is ") == 2
    assert prompt.endswith("\n\nQuestion: How many?\nAnswer:")
    assert few_shot_prompt("How many?", 0) == "Question: How many?\nAnswer:"


def test_a_chat_has_a_turn_for_every_question_and_answer():
    messages = few_shot_messages("How many?", 2)
    roles = [message["role"] for message in messages]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert messages[-1]["content"] == "How many?"
    assert messages[1]["content"] == WORKED_EXAMPLES[0].answer


def answer(text, number=250, **options):
    problem = GradeProblem(question="How much?", number=Decimal(number))
    return GradeAnswer(problem=problem, completion=completion((1, 2), (4, 2), text, **options))


def test_answers_are_judged_strictly_and_flexibly():
    evaluation = GradeEvaluation(
        description={"model": "a model"},
        num_loops=4,
        exit_options=ExitOptions(threshold=0.5),
        answers=[
            answer(" 25 * 10 = 250. The answer is $250."),
            answer(" The answer is 250.00, that is 3 more."),
            answer(" 25 * 10 = 250", finish_reason=FinishReason.LENGTH),
            answer(" The answer is 251."),
            answer(
                "The answer is 250.", finish_reason=FinishReason.ERROR, error="the launch failed"
            ),
        ],
    )
    values = evaluation.to_json()
    assert values["strict"]["num_right"] == 2
    assert values["flexible"]["num_right"] == 2
    assert (values["num_unstated"], values["num_cut_off"], values["num_failed"]) == (1, 1, 1)
    assert values["loops"]["counts"] == [0, 5, 0, 0]
    page = gsm8k_page(evaluation)
    assert '| accuracy, strict ("The answer is N.") | 40.0 % |' in page
    assert "| exits | threshold 0.5 |" in page
    assert "| mean loops of 4 | 2.00 |" in page
    with pytest.raises(LoopedError, match="1 of 5 requests failed, the first: the launch failed"):
        evaluation.check_complete()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "every loop"),
        ({"threshold": 1.0, "max_loops": 2}, "every loop, max_loops 2"),
        (
            {"threshold": 0.5, "mode": ExitMode.LOOKAHEAD, "min_loops": 2, "max_loops": 3},
            "threshold 0.5, mode lookahead, min_loops 2, max_loops 3",
        ),
    ],
)
def test_exits_in_words_are_the_whole_rule(options, words):
    exits = ExitOptions(**options)
    one = GradeEvaluation(description={}, num_loops=4, exit_options=exits, answers=[])
    assert one.exits == words


def test_a_line_of_an_answer_keeps_numbers_exactly():
    values = answer(" The answer is $1,250.50.", number="1250.5").to_json()
    assert (values["number"], values["strict"]) == ("1250.5", "1250.50")
    assert values["is_right_strictly"]
    assert json.loads(json.dumps(values)) == values


def test_prompts_are_raw_unless_a_chat_is_asked_for(tiny_folder, data):
    llm = make_llm(tiny_folder, exit_threshold=0.5, min_loops=1)
    problems = [GradeProblem(question="3 + 4?", number=Decimal(7))] * 2
    raw = evaluate_gsm8k(llm, problems, num_shots=0, max_tokens=6)
    chat = evaluate_gsm8k(llm, problems, num_shots=0, max_tokens=6, is_chat=True)
    for evaluation, prompt in (
        (raw, llm.encode("Question: 3 + 4?\nAnswer:")),
        (chat, llm.encode_chat("3 + 4?")),
    ):
        assert [done.completion.prompt_token_ids for done in evaluation.answers] == [prompt] * 2
    assert raw.loops.num_tokens == sum(len(done.completion.token_ids) - 1 for done in raw.answers)


def test_num_shots_is_bounded():
    with pytest.raises(UsageError, match="num_shots must be in 0 to 3, got 4"):
        evaluate_gsm8k(None, [], num_shots=4)


@pytest.mark.long
def test_the_command_writes_a_report_and_a_line_for_every_problem(tiny_folder, data, tmp_path):
    options = ("eval", "gsm8k", "--data", data, "--model", tiny_folder, "--num-shots", 0)
    options += ("--max-tokens", 4, "--limit", 2, "--exit-threshold", 0.5, *SMALL_FLAGS)
    done = looped(*options, "--out", tmp_path / "out", "--json")
    values = json.loads(done.stdout)
    assert values["strict"]["num_problems"] == 2
    assert (values["exit_threshold"], values["is_chat"]) == (0.5, False)
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"answers.jsonl", "result.json", "result.md", "exit-depths.png"}
    stored = json.loads((tmp_path / "out" / "result.json").read_text())
    assert stored == values | {"is_complete": True}
    lines = (tmp_path / "out" / "answers.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == ["7", "1750"]
    again = looped(*options, "--out", tmp_path / "out", check=False)
    assert (again.returncode, "exists; choose another name" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "nothing.jsonl"), "cannot be read"),
        (("--exit-mode", "trace"), "there are none here"),
    ],
)
def test_mistakes_are_refused_before_the_model_is_loaded(data, arguments, message):
    command = ("eval", "gsm8k", "--data", data, "--model", "nobody/nothing", *arguments)
    done = looped(*command, check=False)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
