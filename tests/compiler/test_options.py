"""Options as token columns, and scores from what is read there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spinf_core.compiler.options import OptionCompiler, OptionPlan, ending
from spinf_core.errors import Rejected
from spinf_core.limits import Limits
from spinf_core.testing.toy import toy_tokenizer

TOKENIZER = toy_tokenizer()


def token(text: str) -> int:
    (only,) = TOKENIZER.encode(text)
    return only


def compiled(template: str, *options: str, case_insensitive: bool = True, limits: Limits | None = None) -> OptionPlan:
    return OptionCompiler(TOKENIZER, limits or Limits()).plan(template, options, case_insensitive, "q.options")


def columns(plan: OptionPlan, option: int) -> set[int]:
    return set(plan.single_column[plan.single_option == option].tolist())


def rejection(template: str, *options: str, **rules: object) -> tuple[str, str | None]:
    with pytest.raises(Rejected) as caught:
        compiled(template, *options, **rules)  # type: ignore[arg-type]
    return caught.value.code, caught.value.param


class TestForms:
    def test_an_option_stands_for_its_case_variants_with_and_without_a_space(self) -> None:
        plan = compiled("Is it?", " yes", "no")
        assert columns(plan, 0) == {token("yes"), token(" yes"), token("Yes"), token(" Yes")}
        assert columns(plan, 1) == {token("no"), token(" no"), token("No"), token(" No")}
        assert plan.chains == ()

    def test_variants_of_several_tokens_are_left_out(self) -> None:
        assert len(TOKENIZER.encode("YES")) > 1
        assert not set(TOKENIZER.encode("YES")) & columns(compiled("Is it?", "yes"), 0)

    def test_a_single_character_has_an_upper_case(self) -> None:
        assert {token("q"), token("Q")} <= columns(compiled("Is it?", "q"), 0)

    def test_without_the_case_rule_an_option_is_itself_alone(self) -> None:
        plan = compiled("Is it?", " yes", "Yes", case_insensitive=False)
        assert columns(plan, 0) == {token(" yes")}
        assert columns(plan, 1) == {token("Yes")}

    def test_an_option_of_several_tokens_is_a_chain_beside_its_one_token_variants(self) -> None:
        plan = compiled("Is it?", "IN")  # "in" and "In"… of which "in" and " in" are one token
        assert plan.chains == ((0, tuple(TOKENIZER.encode("IN"))),)
        assert columns(plan, 0) == {token("in"), token(" in")}
        assert plan.tokens_after_first == 1

    @pytest.mark.parametrize("option", ["😀", "北翼", " North Wing"])
    def test_any_text_is_read_token_by_token(self, option: str) -> None:
        plan = compiled("Is it?", option, limits=Limits(max_option_tokens=20))
        assert plan.chains == ((0, tuple(TOKENIZER.encode(option))),)


class TestBoundary:
    def test_an_option_that_completes_the_template_s_last_word_is_refused(self) -> None:
        assert rejection("The Sta", " yes", "tus") == ("option_boundary", "q.options.1")

    def test_it_is_taken_behind_a_boundary(self) -> None:
        assert columns(compiled("The Sta:", "tus"), 0) >= {token("tus")}

    def test_a_variant_that_merges_is_left_out_of_the_sum(self) -> None:
        assert columns(compiled("The Sta", " tus"), 0) == {token(t) for t in (" tus",)}
        assert token("tus") in columns(compiled("The Sta:", " tus"), 0)

    def test_the_message_names_the_option_and_the_mend(self) -> None:
        with pytest.raises(Rejected, match=r"'tus' merges with the end of the template, ' Sta'; begin the option with a space"):
            compiled("The Sta", "tus")

    def test_an_option_of_too_many_tokens_is_refused(self) -> None:
        assert rejection("Is it?", " yes", "zzzzzz") == ("option_too_long", "q.options.1")
        assert rejection("Is it?", "zzz", limits=Limits(max_option_tokens=2)) == ("option_too_long", "q.options.0")
        assert compiled("Is it?", "zzzzz").chains

    def test_templates_with_one_ending_share_a_plan(self) -> None:
        compiler = OptionCompiler(TOKENIZER, Limits())
        plans = [compiler.plan(text, (" yes", " no"), True, "q.options") for text in ("Is it red?", "Is the gate blue?")]
        assert plans[0] is plans[1]

    def test_equal_plans_are_one_object_whatever_the_endings(self) -> None:
        compiler = OptionCompiler(TOKENIZER, Limits())
        plan = compiler.plan("Is it red?", (" tus",), True, "q.options")
        assert compiler.plan("Is it red:", (" tus",), True, "q.options") is plan
        assert compiler.plan("Is it Sta", (" tus",), True, "q.options") is not plan  # "tus" merges there

    def test_the_case_rule_is_part_of_a_plan(self) -> None:
        compiler = OptionCompiler(TOKENIZER, Limits())
        plans = [compiler.plan("Is it red?", (" yes", " no"), True, "q.options")]
        assert compiler.plan("Is it red?", (" yes", " no"), False, "q.options") is not plans[0]

    @pytest.mark.parametrize(
        ("template", "end"),
        [
            ("Answer:", ":"),
            ("Is the gate red?\nAnswer: ", ": "),
            ("The Sta", " Sta"),
            ("it is '", " '"),
            ("(a) (", ") ("),
            ("don't", "don't"),
            ("foo_bar", "foo_bar"),
            ("  ", "  "),
            ("门是红的吗？\n答案：", "："),
            ("你好，世界", "，世界"),
            ("", ""),
            ("x" * 100, "x" * 100),
        ],
    )
    def test_the_ending_starts_where_a_word_ends(self, template: str, end: str) -> None:
        assert ending(template, TOKENIZER) == end


def chain_plan(*forms: tuple[int, ...], owners: tuple[int, ...] | None = None) -> OptionPlan:
    owners = owners or tuple(range(len(forms)))
    singles = [(form[0], owner) for form, owner in zip(forms, owners, strict=True) if len(form) == 1]
    return OptionPlan(
        options=tuple(map(str, range(max(owners) + 1))),
        single_column=np.array([column for column, _ in singles], np.int32),
        single_option=np.array([owner for _, owner in singles], np.int32),
        chains=tuple((owner, form) for form, owner in zip(forms, owners, strict=True) if len(form) > 1),
        tokens_after_first=0,
    )


def scored(plan: OptionPlan, *probabilities: float) -> tuple[list[float], list[float], float]:
    logprob, p, residual = plan.score(np.log(np.array([probabilities])))
    return np.exp(logprob[0]).tolist(), p[0].tolist(), float(residual[0])


class TestScores:
    def test_one_token_options(self) -> None:
        mass, p, residual = scored(chain_plan((1,), (2,)), 0.3, 0.1)
        assert mass == pytest.approx([0.3, 0.1])
        assert p == pytest.approx([0.75, 0.25])
        assert residual == pytest.approx(0.6)

    def test_forms_of_one_option_add_up(self) -> None:
        mass, p, residual = scored(chain_plan((1,), (2,), (3,), owners=(0, 0, 1)), 0.2, 0.1, 0.1)
        assert mass == pytest.approx([0.3, 0.1])
        assert p == pytest.approx([0.75, 0.25])
        assert residual == pytest.approx(0.6)

    def test_several_tokens_multiply_and_are_not_normalised_by_length(self) -> None:
        """A long word with a predictable tail gains nothing from its length (sglang #523)."""
        mass, p, _ = scored(chain_plan((1,), (2, 3, 4)), 0.1, 0.05, 1.0, 1.0)
        assert mass == pytest.approx([0.1, 0.05])
        assert p == pytest.approx([2 / 3, 1 / 3])

    def test_an_option_that_another_begins_with_counts_once_in_the_union(self) -> None:
        mass, p, residual = scored(chain_plan((1,), (1, 2)), 0.4, 0.4, 0.5)
        assert mass == pytest.approx([0.4, 0.2])
        assert p == pytest.approx([2 / 3, 1 / 3])
        assert residual == pytest.approx(0.6)

    def test_a_longer_prefix_covers_its_continuation_too(self) -> None:
        _, _, residual = scored(chain_plan((1, 2), (1, 2, 3), (1, 4)), 0.5, 0.4, 0.5, 0.4, 0.9, 0.5, 0.2)
        assert residual == pytest.approx(1 - (0.2 + 0.1))

    def test_options_that_share_their_first_token_are_told_apart(self) -> None:
        """North Wing and North Gate."""
        mass, _, residual = scored(chain_plan((1, 2), (1, 3)), 0.5, 0.6, 0.5, 0.3)
        assert mass == pytest.approx([0.3, 0.15])
        assert residual == pytest.approx(0.55)

    def test_a_form_that_two_options_share_counts_once_in_the_union(self) -> None:
        _, _, residual = scored(chain_plan((1,), (1,)), 0.4, 0.4)
        assert residual == pytest.approx(0.6)

    def test_the_residual_is_never_negative(self) -> None:
        logprob = np.log(np.array([[0.5, 0.5]])) + 1e-7
        assert chain_plan((1,), (2,)).score(logprob)[2].tolist() == [0.0]

    def test_an_option_that_underflows_has_a_finite_logprob_and_no_share(self) -> None:
        logprob, p, residual = chain_plan((1,), (2, 3)).score(np.array([[-0.5, -800.0, -900.0]]))
        assert logprob.tolist() == [[-0.5, -1700.0]]
        assert p.tolist() == [[1.0, 0.0]]
        assert residual[0] == pytest.approx(1 - math.exp(-0.5))

    def test_options_that_all_underflow_still_share_one(self) -> None:
        _, p, residual = chain_plan((1,), (2,)).score(np.array([[-1000.0, -1001.0]]))
        assert p[0].tolist() == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.e)])
        assert residual.tolist() == [1.0]

    @settings(deadline=None)
    @given(st.lists(st.lists(st.floats(-30, 0), min_size=5, max_size=5), min_size=2, max_size=40))
    def test_a_question_s_scores_do_not_depend_on_the_others(self, rows: list[list[float]]) -> None:
        plan = chain_plan((1,), (2,), (1, 5), owners=(0, 0, 1)) if len(rows) % 2 else chain_plan((1,), (3, 4), (5, 6))
        values = np.array(rows)[:, : plan.width]
        together = plan.score(values)
        for row in range(len(rows)):
            for whole, alone in zip(together, plan.score(values[row : row + 1]), strict=True):
                assert np.array_equal(whole[row], alone[0])
