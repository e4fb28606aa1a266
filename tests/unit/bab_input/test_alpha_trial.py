"""α-CROWN is used on input boxes where it saves more splits than it costs.

A failure wastes most of a search, or leaves open what α would have closed; no proof is wrong.
"""

from __future__ import annotations

import torch

from complete_verifier.bab.alpha_trial import AlphaEffort, AlphaTrial, Trials, boxes_below


def test_it_is_tried_less_often_after_each_failure_and_again_after_a_success() -> None:
    trial = AlphaTrial(iterations=5)
    due = []
    for _ in range(12):
        due.append(trial.effort(blocks=1).sample > 0)
        trial.note(Trials(tried=int(due[-1]), paid=0))
    assert [index for index, is_due in enumerate(due) if is_due] == [0, 2, 5, 10]
    while trial.effort(blocks=1).sample == 0:
        pass
    trial.note(Trials(tried=4, paid=2))
    assert trial.effort(blocks=1).sample > 0


def test_blocks_share_one_sample() -> None:
    samples = [AlphaTrial(iterations=5).effort(blocks).sample for blocks in (1, 4, 1000)]
    assert samples == [16, 4, 2]


def test_boxes_below_double_with_each_split_that_is_missing() -> None:
    before, after = torch.tensor([-4.0, -2.0, -1.5]), torch.tensor([-3.0, -1.0, -0.5])
    expected = torch.tensor([16.0, 4.0, 2.0**1.5])
    torch.testing.assert_close(boxes_below(before, after, 0.0), expected)
    unknown = boxes_below(torch.full((1,), -torch.inf), torch.tensor([-1.0]), 0.0)
    no_progress = boxes_below(torch.tensor([-1.0]), torch.tensor([-1.0]), 0.0)
    nothing = boxes_below(torch.tensor([-1.0]), torch.tensor([-torch.inf]), 0.0)
    assert float(unknown) == float(no_progress) == float(nothing) > 1e9


def test_it_goes_on_where_what_it_closes_would_have_taken_longer() -> None:
    effort = AlphaEffort(sample=16, iterations=5)
    assert effort.worth_trying(torch.full((16,), 100.0))
    assert not effort.worth_trying(torch.full((16,), 8.0))
    assert effort.pays(torch.full((8,), 100.0), 16)
    assert not effort.pays(torch.full((8,), 8.0), 16)
    assert not effort.pays(torch.full((7,), 1e9), 16)
    assert not effort.pays(torch.empty(0), 16)
    assert not effort.stopped().worth_trying(torch.full((16,), 1e9))
    assert not AlphaEffort(iterations=0).worth_trying(torch.full((16,), 1e9))
