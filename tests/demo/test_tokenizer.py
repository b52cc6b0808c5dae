"""The demo's tokenizer: any text comes back, Ouro's special ids, a token a digit and a word."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped.demo.problems import draw_problem
from looped.demo.tokenizer import CHAT_TEMPLATE, chat_prompt, demo_tokenizer, write_tokenizer
from looped.text.chat_template import ChatTemplate
from looped.text.tokenizer import Tokenizer

FAST = demo_tokenizer()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.from_folder(folder)


@given(st.text())
def test_any_text_comes_back(text):
    ids = FAST.encode(text, add_special_tokens=False).ids
    assert FAST.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_have_ouros_ids(tokenizer):
    named = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    assert tokenizer.special_token_ids == named
    assert {text: tokenizer.encode(text) for text in named} == {t: [i] for t, i in named.items()}
    assert tokenizer.stop_token_ids == {0, 2}


def test_every_digit_and_every_word_of_a_problem_is_one_token(tokenizer):
    rng = random.Random(0)
    for _ in range(300):
        problem = draw_problem(rng, "train")
        for text in (problem.question, problem.solution, chat_prompt(problem.question)):
            pieces = re.findall(r"<\|\w+\|>| ?\d| ?[A-Za-z]+| ?[^\w\s]|\s", text)
            ids = tokenizer.encode(text)
            assert [tokenizer.decode([i], has_special=True) for i in ids] == pieces


def test_problems_fit_the_recipes_rows(tokenizer):
    rng = random.Random(0)
    longest = max(
        len(tokenizer.encode(chat_prompt(problem.question) + problem.solution)) + 1
        for problem in (draw_problem(rng, "train", 4) for _ in range(3000))
    )
    assert longest <= 112


def test_the_chat_template_renders_what_is_trained_on(tokenizer):
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    assert tokenizer.render_chat(messages) == chat_prompt("What is 3 + 4?")
    assert ChatTemplate(CHAT_TEMPLATE, {}).render(messages) == chat_prompt("What is 3 + 4?")
