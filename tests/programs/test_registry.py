"""Every launch kind has a program."""

from looped.programs.registry import PROGRAMS
from looped.sched import LAUNCH_KINDS


def test_every_launch_kind_has_a_program_of_its_own():
    assert set(PROGRAMS) == set(LAUNCH_KINDS)
    assert len({id(program) for program in PROGRAMS.values()}) == len(LAUNCH_KINDS)
