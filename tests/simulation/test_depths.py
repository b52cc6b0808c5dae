"""Made-up and recorded exit depths: their statistics, and what is refused."""

from itertools import pairwise
from statistics import fmean, pvariance

import pytest

from looped.errors import UsageError
from looped.simulation.loads.depths import FAMILIES, DepthFamily, RecordedDepths, depth_source

MEANS = {"easy": 2.25, "typical": 2.46, "hard": 2.58}


def sample(source, num_requests=400, num_tokens=101):
    """Depths behind the first token, by request."""
    return [source.depths(index, num_tokens)[1:] for index in range(num_requests)]


def correlation(pairs):
    first, then = zip(*pairs, strict=True)
    a, b = fmean(first), fmean(then)
    shared = fmean((x - a) * (y - b) for x, y in pairs)
    return shared / (pvariance(first) * pvariance(then)) ** 0.5


@pytest.mark.parametrize("name", MEANS)
def test_a_family_has_its_mean(name):
    source = depth_source(name, 4, seed=3)
    assert source.mean == pytest.approx(MEANS[name], abs=1e-9)
    depths = [depth for own in sample(source) for depth in own]
    assert fmean(depths) == pytest.approx(MEANS[name], abs=0.06)
    shares = [depths.count(depth) / len(depths) for depth in (1, 2, 3, 4)]
    assert shares == pytest.approx(list(FAMILIES[name]), abs=0.03)


def test_requests_differ_by_the_share_of_variance_that_is_theirs():
    def spread(heterogeneity):
        source = depth_source("typical", 4, heterogeneity=heterogeneity, autocorrelation=0.0)
        own = sample(source)
        depths = [depth for request in own for depth in request]
        return pvariance(map(fmean, own)) / pvariance(depths)

    # A request's mean over 100 tokens still varies a little by chance where none is shared.
    assert spread(0.0) == pytest.approx(0.01, abs=0.005)
    assert spread(0.25) == pytest.approx(0.23, abs=0.05)
    assert spread(1.0) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("own", "expected"), [(0.0, 0.0), (0.5, 0.45), (0.9, 0.85)])
def test_neighbouring_tokens_are_correlated(own, expected):
    source = depth_source("typical", 4, heterogeneity=0.0, autocorrelation=own)
    pairs = [pair for depths in sample(source, 200) for pair in pairwise(depths)]
    assert correlation(pairs) == pytest.approx(expected, abs=0.05)


def test_the_default_has_both():
    pairs = [pair for depths in sample(depth_source("typical", 4)) for pair in pairwise(depths)]
    assert 0.5 < correlation(pairs) < 0.625


def test_a_request_draws_the_same_whatever_was_drawn_before():
    source = depth_source("hard", 4, seed=5)
    long = source.depths(7, 50)
    source.depths(2, 10)
    assert source.depths(7, 20) == long[:20]
    assert source.depths(8, 50) != long
    assert depth_source("hard", 4, seed=6).depths(7, 50) != long
    assert long[0] == 4


@pytest.mark.parametrize(("num_planes", "mean"), [(2, 1.3), (4, 3.1), (8, 5.0), (4, 1.0), (4, 4.0)])
def test_any_mean_can_be_had_of_any_number_of_loops(num_planes, mean):
    source = depth_source(f"mean:{mean}", num_planes)
    depths = [depth for own in sample(source, 300) for depth in own]
    assert fmean(depths) == pytest.approx(mean, abs=0.08)
    assert set(depths) <= set(range(1, num_planes + 1))


def test_full_depth_is_full_depth():
    assert depth_source("full", 3).depths(0, 4) == (3, 3, 3, 3)


@pytest.mark.parametrize(
    ("name", "num_planes", "complaint"),
    [
        ("middling", 4, "exits must be full, easy, typical, hard or mean:X; got 'middling'"),
        ("easy", 3, "exits easy are for 4 loops, got a model of 3; try mean:X"),
        ("mean:9", 4, "X in 1..4"),
        ("mean:few", 4, "X in 1..4"),
    ],
)
def test_a_source_that_there_is_not_is_refused(name, num_planes, complaint):
    with pytest.raises(UsageError, match=complaint):
        depth_source(name, num_planes)


def test_a_family_out_of_range_is_refused():
    with pytest.raises(UsageError, match="add up to 1"):
        DepthFamily("odd", (0.5, 0.4))
    with pytest.raises(UsageError, match="heterogeneity must be"):
        depth_source("easy", 4, heterogeneity=1.5)
    with pytest.raises(UsageError, match="autocorrelation"):
        depth_source("easy", 4, autocorrelation=1.0)


def test_recorded_depths_come_back_and_begin_again():
    source = RecordedDepths([(4, 1, 2), (4,)], 4)
    assert source.depths(0, 3) == (4, 1, 2)
    assert source.depths(1, 3) == (4, 4, 4)
    assert source.depths(2, 2) == (4, 1)


@pytest.mark.parametrize("traces", [[], [()], [(3, 1)], [(4, 5)], [(4, 0)]])
def test_recorded_depths_that_are_none_are_refused(traces):
    with pytest.raises(UsageError, match="exit trace"):
        RecordedDepths(traces, 4)
